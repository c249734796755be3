"""Time series and sounds: what is read and refused, how recordings are divided, and that networks learn of them."""

import csv
import shutil
import wave
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.synthetic_signals import write_wave
from shared.errors import ConfigurationError, DataError
from shared.exchange.records.run import RunConfiguration
from shared.learning.cost import flops, model_cost
from shared.learning.data.headers import fields_that_may_name
from shared.learning.data.noise import with_noise
from shared.learning.data.recordings import read_recordings
from shared.learning.data.sets import Member
from shared.learning.data.spectrograms import cut_spectrograms, read_spectrograms, read_wave
from shared.learning.data.splits import Folds, SplitPlan, unit_of
from shared.learning.data.time_series import cut_windows, held_by, read_time_series
from shared.learning.methods import open_method
from shared.learning.new_runs import as_of_now
from shared.learning.probe import probe_score
from shared.learning.requirements import requirements
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Collection, divided, members_anew
from site_client.configuration import Policy
from site_client.own_images import LookAtOwn
from site_client.policy import excesses
from studies.simulation import run_rounds
from tests.learning.dealt import image, opened_anew, sets_anew
from tests.learning.small_sites import SIGNALS, write_small

SITES = ("north", "south")
SIZES = {"time_series": 96, "spectrograms": 64}
LABELS = ("normal", "abnormal")
SEGMENTS = {"segment_s": 1.0, "frame_s": 0.064, "highest_hz": 500.0, "side": 64}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("signals")
    for task, size in SIZES.items():
        for number, site in enumerate(SITES):
            write_small(task, root / task / site, images=24, size=size, seed=number, site=number)
    return root


def opened(task, folder, split=None, **options):
    return opened_anew(task, folder, SIGNALS[task] | options, split)


def table_of(folder):
    return list(csv.DictReader((folder / "recordings.csv").open()))


# --- the table of recordings --------------------------------------------------------------------------------


def listed(root, text):
    root.mkdir(exist_ok=True)
    for name in "ab":
        write_wave(root / f"{name}.wav", np.zeros(2000), 1000)
    (root / "recordings.csv").write_text(text)
    return root


def read(root):
    return read_recordings(root, LABELS, lambda path: read_spectrograms(path, **SEGMENTS))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id,file\nx,a.wav\n", r"columns must be id, file, label, and group if wanted; found: id, file"),
        ("id,file,label,name\nx,a.wav,normal,n\n", "columns must be"),
        ("id,file,label,label\nx,a.wav,normal,normal\n", "columns must be"),
        ("", "found: none"),
        ("id,file,label\n", "lists no recording"),
        ("id,file,label\n,a.wav,normal\n", "line 2: id '' is empty"),
        ("id,file,label\nx,a.wav,normal\nx,b.wav,normal\n", "line 3: id 'x' is empty, there twice"),
        ("id,file,label\nx/1,a.wav,normal\n", "has a slash"),
        ("id,file,label\nx,../site/a.wav,normal\n", None),
        ("id,file,label\nx,../a.wav,normal\n", r"line 2: '\.\./a\.wav' is no path within the data folder"),
        ("id,file,label\nx,/etc/passwd,normal\n", "no path within the data folder"),
        ("id,file,label\nx,link.wav,normal\n", "no path within the data folder"),
        ("id,file,label\nx,,normal\n", "no path within the data folder"),
        ("id,file,label\nx,a.wav,normal\ny,./a.wav,normal\n", "line 3: ./a.wav is listed twice"),
        ("id,file,label\nx,a.wav,murmur\n", "line 2: label must be one of normal, abnormal, not 'murmur'"),
        ("id,file,label\nx,a.wav\n", "label must be one of"),
        ("id,file,label\nx,a.wav,normal,loud\n", r"recordings\.csv, line 2: has more cells than columns"),
        ("id,file,label,group\nx,a.wav,normal,\n", "the group is empty"),
        ("id,file,label\nx,c.wav,normal\n", r"line 2: site/c\.wav: cannot be read as WAV"),
    ],
)
def test_a_wrong_table_of_recordings_is_explained(tmp_path, text, sentence):
    root = listed(tmp_path / "site", text)
    (root / "link.wav").symlink_to("/etc/passwd")
    if sentence is None:
        assert len(read(root)) == 1
        return
    with pytest.raises(DataError, match=sentence):
        read(root)


def test_every_wrong_recording_is_named_at_once(tmp_path):
    root = listed(tmp_path / "site", "id,file,label\nx,a.wav,murmur\ny,c.wav,normal\nz,b.wav,abnormal\n")
    with pytest.raises(DataError) as error:
        read(root)
    assert [problem.partition(": ")[0] for problem in error.value.problems] == [
        "recordings.csv, line 2",
        "recordings.csv, line 3",
    ]


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(DataError, match=r"recordings\.csv: cannot be read"):
        read(tmp_path)


# --- time series --------------------------------------------------------------------------------------------


def series(path, rows, header="time,x,y"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def steady(count, rate=10):
    return [f"{number / rate:.3f},{number},{-number}" for number in range(count)]


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ("time,x", steady(4), "needs one column each called y"),
        ("x,y", steady(4), "needs one column each called time"),
        ("time,x,y,x", steady(4), "needs one column each called x"),
        ("time;x;y", ["0,0;1;2"], "has semicolons between its columns; save it with commas there, and with points"),
        ('"time"\tx\ty', steady(4), "has tabs between its columns"),
        (
            "time,x,y",
            [*steady(2), "0.2,high,1"],
            "line 4: x is 'high' where a finite number should be; fill",
        ),
        ("time,x,y", [*steady(2), "0.2,1"], "line 4: y is empty where a finite number should be"),
        ("time,x,y", [*steady(2), "0.2,,1"], "line 4: x is empty where a finite number should be"),
        ("time,x,y", [*steady(2), '0.2,"0,5",1'], "line 4: x is '0,5' where"),
        (
            "time,x,y",
            [*steady(2), "2024-01-01T00:00,1,1"],
            "line 4: time is '2024-01-01T00:00' where seconds",
        ),
        ("time,x,y", [*steady(2), "0.2,nan,1"], "line 4: x is 'nan' where a finite number should be"),
        ("time,x,y", [*steady(2), "0.2,1,inf"], "line 4: y is 'inf' where a finite number should be"),
        ("time,x,y", [*steady(1), "", "", *steady(2)[1:], "0.2,,1"], "line 6: x is empty"),
        ("time,x,y", [*steady(2), "0.2,1_0,1"], "cannot be read as rows of numbers"),
        ("time,x,y", [], "fewer than two rows"),
        ("time,x,y", steady(1), "fewer than two rows"),
        ("time,x,y", steady(9, rate=50), "has 50 rows a second by its column time, .* the run wants 10; .* resample"),
        ("time,x,y", steady(9, rate=6.4), r"has 6.4\d* rows a second by its column time, .* the run wants 10"),
        ("time,x,y", steady(300, rate=10.3), r"has 10\.\d+ rows a second by its column time, .* the run wants 10"),
        ("time,x,y", steady(9, rate=0.01), "0.01 rows a second by its column time, which must be in seconds"),
        ("time,x,y", [*steady(3), "0.9,1,1", "1.0,1,1"], "line 5: the time goes on by 0.7 s where 0.1 s were due"),
        ("time,x,y", [*steady(3), "0.1,1,1"], "line 5: the time goes on by -0.1 s"),
        (
            "time,x,y",
            ["0,1,1"] * 4,
            "line 3: the time goes on by 0 s .* if it is rounded, write more digits",
        ),
        ("time,x,y", ["", *steady(3), "", "0.9,1,1"], "line 7: the time goes on by 0.7 s"),
        ("time,x,y", ["0,1,1", "5e-324,1,1", "1e-323,1,1"], "has inf rows a second by its column time"),
        ("time,x,y,note", ['"0",1,1,', '0.1,"2,2,', "0.2,3,3,", "0.3,4,4,"], "line 3: x is '\u201d2' where a finite"),
        ("time,x,y,note", ['"0",1,1,', '"0.1",2,2,"begun', "0.2,3,3,"], "line 3: time is '\u201d0.1\u201d' where"),
    ],
)
def test_a_wrong_time_series_is_explained(tmp_path, header, rows, sentence):
    with pytest.raises(DataError, match=sentence):
        read_time_series(series(tmp_path / "a.csv", rows, header), ("x", "y"), 10.0)


def test_a_time_series_that_is_no_text_or_not_there_is_explained(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00time")
    for name in ("a.csv", "b.csv"):
        with pytest.raises(DataError, match=f"{name}: "):
            read_time_series(tmp_path / name, ("x", "y"), 10.0)


def test_channels_are_found_by_name_and_other_columns_are_not_read(tmp_path):
    rows = ["\ufeffy,note,time,x", "1,hand,0.00,5", '"2","left, or right",0.11,6', "3,hand,0.20,7"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    values = read_time_series(tmp_path / "a.csv", ("x", "y"), 10.0)
    assert values.tolist() == [[5, 1], [6, 2], [7, 3]]


@pytest.mark.parametrize("notes", ['"begun,', '5" probe,"begun', ',"', '"begun" at,"'])
def test_a_quotation_mark_that_is_not_closed_cuts_no_recording_short(tmp_path, notes):
    rows = [f"{row},{each}" for row, each in zip(steady(4), [",", notes, '"a,b,c",', ","], strict=True)]
    path = series(tmp_path / "a.csv", rows, "time,x,y,note,more")
    assert read_time_series(path, ("x", "y"), 10.0).shape == (4, 2)
    path.write_text(path.read_text() + "0.4,oops,5,,\n")
    assert held_by(path).channels == ("y",)


def test_an_open_quotation_mark_changes_its_own_line_alone(tmp_path):
    rows = [f'{number / 10:.1f},"1,000,500",{number},' for number in range(4)] + ['0.4,,4,"begun']
    found = read_time_series(series(tmp_path / "a.csv", rows, "time,steps,x,note"), ("x",), 10.0)
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_comma_in_quotation_marks_moves_no_column(tmp_path):
    rows = [f'{number / 10:.1f},"1,000,500",{number}' for number in range(4)]
    found = read_time_series(series(tmp_path / "a.csv", rows, "time,steps,x"), ("x",), 10.0)
    assert found[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ("x,y", steady(4), "needs one column each called time"),
        ("time;x;y", ["0;1;1", "1;2;2"], "has semicolons between its columns"),
        ("time,x,y", [*steady(2), "noon,1,1"], "line 4: time is 'noon' where seconds should be"),
        ("time,x,y", steady(1), "fewer than two rows"),
        ("time,x,y", [*steady(3), "0.9,1,1", "1.0,1,1"], "line 5: the time goes on by 0.7 s where 0.1 s were due"),
        ("time,x,y", [*steady(3), "-0.1,1,1"], "line 5: the time goes on by -0.3 s where 0.1 s were due"),
        ("time,x,y", ["0,1,1"] * 4, "line 3: the time goes on by 0 s"),
        ("time,x,x", steady(4), "has no column beside time with a number in each row"),
    ],
)
def test_what_no_run_could_read_of_a_time_series_is_told_before_there_is_one(tmp_path, header, rows, sentence):
    with pytest.raises(DataError, match=sentence):
        held_by(series(tmp_path / "a.csv", rows, header))


def test_what_a_time_series_holds_is_known_before_a_run_names_any_of_it(tmp_path):
    rows = [f"{number / 300:.3f},{number},{'' if number else 1},hand," for number in range(10)]
    held = held_by(series(tmp_path / "a.csv", rows, "time,x,heart_rate,note,"))
    assert held.channels == ("x",) and len(held.sha256) == 32
    assert held.rate_hz == pytest.approx(300) and held.seconds == pytest.approx(1 / 30)


def test_windows_overlap_by_the_stride_and_what_is_left_over_is_dropped():
    values = np.arange(22, dtype=float).reshape(11, 2)
    windows = cut_windows(values, 4, 3, (0.0, 1.0), (1.0, 2.0))
    assert [window.shape for window in windows] == [(2, 4)] * 3
    assert windows[2][0].tolist() == [12, 14, 16, 18]
    assert windows[2][1].tolist() == [6, 7, 8, 9]
    assert windows[0].dtype == np.float32


@settings(max_examples=40)
@given(st.integers(8, 60), st.integers(1, 8), st.integers(1, 9), st.floats(0.01, 100), st.floats(-1000, 1000))
def test_a_recording_is_taken_off_its_own_mean_and_divided_by_its_own_deviation(rows, window, stride, gain, level):
    values = np.random.default_rng(rows).normal(size=(rows, 3))
    plain, changed = (cut_windows(each, window, stride) for each in (values, gain * values + level))
    assert len(plain) == (rows - window) // stride + 1
    assert np.allclose(plain, changed, atol=1e-3)
    (whole,) = cut_windows(values, rows, 1)
    assert np.allclose(whole.mean(axis=1), 0, atol=1e-5)
    assert np.allclose(whole.std(axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("value", [3.0, 0.1, 1 / 3, 1000000.1, -1e-300])
def test_a_channel_that_never_changes_is_zero(value):
    values = np.full((1000, 1), value)
    (window,) = cut_windows(values, 1000, 1)
    assert (window == 0).all()
    (as_before,) = cut_windows(values, 1000, 1, constant_is_zero=False)
    assert set(as_before.ravel().tolist()) <= {0.0, 1.0, -1.0}


def test_a_channel_that_never_changes_is_in_an_older_run_what_it_was(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("time,x,y\n" + "".join(f"{moment / 20},0.1,0.1\n" for moment in range(1000)))
    task, options = task_named("time_series"), SIGNALS["time_series"]
    run = RunConfiguration(run="r", task=task.name, method="mean", sites=["a"], rounds=1, task_options=options)
    older, newer = (task.excerpts(path, task.options(each.task_options)) for each in (run, as_of_now(run)))
    assert not np.any(newer)
    assert np.array_equal(older, cut_windows(np.full((1000, 2), 0.1), 32, 16, constant_is_zero=False))


# --- sounds -------------------------------------------------------------------------------------------------


def wave_file(path, content, *, channels=1, width=2, rate=2000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def test_a_sound_is_read_as_it_was_written(tmp_path):
    sound = np.array([0, 0.5, -0.5, 2, -2])
    write_wave(tmp_path / "a.wav", sound, 4000)
    read_back, rate = read_wave(tmp_path / "a.wav")
    assert rate == 4000
    assert np.allclose(read_back, [0, 0.5, -0.5, 1, -1], atol=1e-4)


def test_wrong_sounds_are_explained(tmp_path):
    wave_file(tmp_path / "stereo.wav", bytes(8000), channels=2)
    wave_file(tmp_path / "bytes.wav", bytes(8000), width=1)
    wave_file(tmp_path / "short.wav", bytes(800))
    wave_file(tmp_path / "slow.wav", bytes(8000), rate=800)
    (tmp_path / "text.wav").write_text("this is no sound")
    (tmp_path / "empty.wav").write_bytes(b"")
    whole = wave_file(tmp_path / "torn.wav", bytes(8000)).read_bytes()
    (tmp_path / "torn.wav").write_bytes(whole[:5001])
    for name, sentence in {
        "stereo": "has 2 channels of 16 bits; save it with one channel of 16 bits",
        "bytes": "has 1 channels of 8 bits",
        "short": "lasts 0.2 s, a segment 1 s; leave it out",
        "slow": "800 samples a second hold nothing above 400 Hz, and the run looks up to 500 Hz",
        "text": "cannot be read as WAV",
        "empty": "cannot be read as WAV",
        "torn": "is cut off",
        "absent": "cannot be read as WAV",
    }.items():
        with pytest.raises(DataError, match=sentence) as error:
            read_spectrograms(tmp_path / f"{name}.wav", **SEGMENTS)
        assert str(tmp_path.parent) not in str(error.value)


@settings(max_examples=30)
@given(st.binary(max_size=200), st.integers(0, 60))
def test_whatever_a_sound_file_holds_is_read_or_refused(tmp_path_factory, junk, place):
    path = tmp_path_factory.mktemp("junk") / "a.wav"
    write_wave(path, np.zeros(500), 1000)
    content = path.read_bytes()
    path.write_bytes(content[:place] + junk + content[place + len(junk) :])
    with suppress(DataError):
        read_spectrograms(path, **SEGMENTS)
    fields_that_may_name(path)


@pytest.mark.parametrize("rate", [1000, 2000, 4410])
def test_a_tone_is_a_line_at_its_own_height_whatever_the_rate(rate):
    time = np.arange(2 * rate) / rate
    pictures = cut_spectrograms(np.sin(2 * np.pi * 125 * time), rate, **SEGMENTS)
    assert len(pictures) == 2
    for picture in pictures:
        assert (picture.shape, picture.dtype) == ((64, 64, 3), np.uint8)
        brightest = picture[..., 0].mean(axis=1).argmax()
        assert abs(brightest - 0.75 * 64) <= 2  # a quarter of the highest frequency, from below


def test_how_loud_a_recording_is_does_not_matter_but_how_loud_a_part_of_it_is():
    rng = np.random.default_rng(1)
    sound = 0.5 * np.concatenate([rng.normal(size=1000), 0.1 * rng.normal(size=1000)])
    loud, quiet = cut_spectrograms(sound, 1000, **SEGMENTS)
    assert loud.mean() > quiet.mean() + 20
    for whole, fainter in zip((loud, quiet), cut_spectrograms(0.1 * sound, 1000, **SEGMENTS), strict=True):
        assert np.abs(whole.astype(int) - fainter).max() <= 1
    (silence,) = {picture.tobytes() for picture in cut_spectrograms(np.zeros(2000), 1000, **SEGMENTS)}
    assert set(silence) == {128}


def test_texts_in_a_sound_file_that_may_name_people_are_found(tmp_path):
    path = wave_file(tmp_path / "a.wav", bytes(100))
    assert fields_that_may_name(path) == []
    texts = b"INFO" + b"ISFT\x04\0\0\0Lavf" + b"IART\x05\0\0\0Erika\0" + b"ICMT\x02\0\0\0  "
    path.write_bytes(path.read_bytes() + b"LIST" + len(texts).to_bytes(4, "little") + texts)
    assert fields_that_may_name(path) == ["IART"]
    path.write_bytes(path.read_bytes() + b"id3 \x02\0\0\0ab")
    assert fields_that_may_name(path) == ["IART", "id3"]


# --- how recordings are divided -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Excerpt:
    """A piece of a recording."""

    id: str


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(0, 5)), min_size=12, max_size=30),
    st.booleans(),
    st.sampled_from([None, Folds(count=3, outer=0, inner=1), Folds(count=4, outer=2, inner=0)]),
    st.integers(0, 5),
)
def test_no_recording_and_no_group_is_in_two_splits(tmp_path_factory, recordings, with_groups, folds, seed):
    group_of = {f"r{number}": f"g{group}" for number, (_, _, group) in enumerate(recordings)}
    units = [
        image(name, str(label), group_of[name] if with_groups else None)
        for name, (_, label, _) in zip(group_of, recordings, strict=True)
    ]
    samples = [
        Excerpt(f"r{number}/{excerpt:04d}")
        for number, (excerpts, _, _) in enumerate(recordings)
        for excerpt in range(1, excerpts + 1)
    ]
    try:
        sets = sets_anew(units, tmp_path_factory.getbasetemp(), SplitPlan(folds=folds), seed)
    except DataError as error:
        assert all("set is empty" in problem or "folds are asked for" in problem for problem in error.problems)
        return
    dataset = divided(
        Collection(samples, ("0", "1", "2")), {name: dict.fromkeys(ids, Member(0)) for name, ids in sets.items()}
    )
    parts = [[sample.id for sample in part] for part in (dataset.train, dataset.validation, dataset.test)]
    assert sorted(name for part in parts for name in part) == sorted(sample.id for sample in samples)
    of_units = [{unit_of(name) for name in part} for part in parts]
    of_groups = [{group_of[unit] for unit in part} for part in of_units]
    for kinds in (of_units, of_groups) if with_groups else (of_units,):
        assert len(set.union(*kinds)) == sum(map(len, kinds))


@pytest.mark.parametrize("task", SIGNALS)
def test_all_that_is_cut_from_one_person_is_in_one_split(data, task):
    folder = data / task / "north"
    person_of = {row["id"]: row["group"] for row in table_of(folder)}
    label_of = {row["id"]: row["label"] for row in table_of(folder)}
    dataset = opened(task, folder)
    parts = [dataset.train, dataset.validation, dataset.test]
    people = [{person_of[unit_of(sample.id)] for sample in part} for part in parts]
    assert len(set.union(*people)) == sum(map(len, people)) == len(set(person_of.values()))
    samples = [sample for part in parts for sample in part]
    assert len({sample.id for sample in samples}) == len(samples)
    assert {unit_of(sample.id): dataset.classes[sample.grade] for sample in samples} == label_of


@pytest.mark.parametrize(("least", "is_told"), [(5, True), (1, False)])
def test_a_site_is_told_beforehand_that_no_validation_score_leaves_as_people_have_several_classes(data, least, is_told):
    task, folder = task_named("time_series"), data / "time_series" / "north"
    assert {row["label"] for row in table_of(folder) if row["group"] == "person-01"} == {
        "resting",
        "walking",
        "running",
    }
    members = members_anew(task, folder, SplitPlan(), 1, secret=b"x", least=least)
    for run in (None, run_of("time_series", "fedavg", 1)):
        asked = LookAtOwn(task=task.name, root=folder, run=run, by="", members=members, least=least, until="; now")
        told = [each for each in asked.answer(print) if "validation auroc stays here" in each.text]
        assert [(each.grade, each.text[-23:]) for each in told] == [("warning", " would change that; now")] * is_told


@pytest.mark.parametrize("is_longer_copy", [False, True])
def test_copies_are_found_by_pieces_but_not_by_those_in_which_all_channels_rest(tmp_path, is_longer_copy):
    values = np.random.default_rng(1).normal(size=(3, 128, 2))
    values[:, 32:64] = 0
    train, validation, test = values
    if is_longer_copy:
        test = np.concatenate([train, test[:32]])
    rows, splits = ["id,file,label"], ["id,split"]
    for split, moments in {"train": train, "validation": validation, "test": test}.items():
        series(tmp_path / f"{split}.csv", [f"{row / 20:.2f},{x},{y}" for row, (x, y) in enumerate(moments)])
        rows.append(f"{split},{split}.csv,resting")
        splits.append(f"{split},{split}")
    (tmp_path / "recordings.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "split.csv").write_text("\n".join(splits) + "\n")
    run = run_of("time_series", "fedavg", 1)
    run = run.model_copy(update={"task_options": run.task_options | {"mean": [1.0, 2.0], "std": [1.0, 3.0]}})
    members = members_anew(task_named("time_series"), tmp_path, SplitPlan(), 1, secret=b"x")
    found = LookAtOwn(task="time_series", root=tmp_path, run=run, by="", members=members).answer(print)
    (told,) = (each.text for each in found if "two splits under two names" in each.text)
    assert (": train (train) = test (test);" in told) == is_longer_copy
    assert ("no recording lies" in told) != is_longer_copy


def test_a_split_file_speaks_of_recordings(data, tmp_path):
    folder = tmp_path / "site"
    write_small("spectrograms", folder, images=6, size=64)
    names = [row["id"] for row in table_of(folder)]
    lines = [f"{name},{split}" for name, split in zip(names, ["train"] * 4 + ["validation", "test"], strict=True)]
    (folder / "split.csv").write_text("\n".join(["id,split", *lines]) + "\n")
    with pytest.raises(DataError, match="group 'person-02' is in test and validation; put it into one"):
        opened("spectrograms", folder)
    table = folder / "recordings.csv"
    table.write_text("\n".join(line.rpartition(",")[0] for line in table.read_text().splitlines()) + "\n")
    dataset = opened("spectrograms", folder)
    assert {unit_of(sample.id) for sample in dataset.test} == {names[5]}
    assert len(dataset.train) == 8
    (folder / "split.csv").write_text("\n".join(["id,split", *lines[1:], "other,train"]) + "\n")
    with pytest.raises(DataError) as error:
        opened("spectrograms", folder)
    assert list(error.value.problems) == [
        "split.csv, line 7: nothing here is called 'other'; write a name that is here, or remove the line.",
        f"split.csv: '{names[0]}' has no line; add one.",
    ]


def test_groups_are_said_in_one_place(tmp_path):
    write_small("spectrograms", tmp_path, images=6, size=64)
    (tmp_path / "split.csv").write_text("id,group\n" + "".join(f"{row['id']},g\n" for row in table_of(tmp_path)))
    with pytest.raises(DataError, match="the groups are said elsewhere already; take the column group out"):
        opened("spectrograms", tmp_path)


def test_recordings_without_a_group_are_each_their_own(tmp_path):
    write_small("time_series", tmp_path, images=12, size=64)
    table = tmp_path / "recordings.csv"
    table.write_text("\n".join(line.rpartition(",")[0] for line in table.read_text().splitlines()) + "\n")
    dataset = opened("time_series", tmp_path)
    units = [{unit_of(sample.id) for sample in part} for part in (dataset.train, dataset.validation, dataset.test)]
    assert sum(map(len, units)) == len(set.union(*units)) == 12


# --- the tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("time_series", {"channels": []}),
        ("time_series", {"channels": ["x", "x"]}),
        ("time_series", {"channels": ["time"]}),
        ("time_series", {"channels": [" x"]}),
        ("time_series", {"window": 4}),
        ("time_series", {"stride": 0}),
        ("time_series", {"rate_hz": 0}),
        ("time_series", {"mean": [0.0]}),
        ("time_series", {"std": [1.0, 0.0]}),
        ("time_series", {"mean": [0.0, float("nan")]}),
        ("time_series", {"labels": ["one"]}),
        ("time_series", {"optimizer": "lion"}),
        ("spectrograms", {"encoder": "no such encoder"}),
        ("spectrograms", {"labels": ["a", "a"]}),
        ("spectrograms", {"segment_seconds": 0.1}),
        ("spectrograms", {"highest_hz": 20}),
        ("spectrograms", {"weights": "mine"}),
        ("spectrograms", {"channels": ["x"]}),
    ],
)
def test_wrong_options_are_refused(task, options):
    with pytest.raises(ConfigurationError, match=r"task_options"):
        task_named(task).options(SIGNALS[task] | options)


@pytest.mark.parametrize("task", SIGNALS)
def test_recordings_are_taken_as_they_are(task, data):
    found = task_named(task)
    assert found.augmentation({}).copies == 0
    with pytest.raises(ConfigurationError, match="takes recordings as they are"):
        found.augmentation({"horizontal_flip": 0.5})


@pytest.mark.parametrize("task", SIGNALS)
def test_files_without_labels_are_read_alike(task, data):
    found = task_named(task)
    options, folder = found.options(SIGNALS[task]), data / task / "north"
    labelled = {sample.id: sample for sample in found.open_images(folder, options).samples}
    unlabelled = found.open_unlabelled(folder / "recordings", options)
    assert {sample.id for sample in unlabelled} == set(labelled)
    assert all((sample.image == labelled[sample.id].image).all() for sample in unlabelled)
    first = sorted((folder / "recordings").iterdir())[0]
    assert {unit_of(sample.id) for sample in found.open_unlabelled(first, options)} == {first.stem}
    with pytest.raises(DataError, match=r"recordings: is not a (CSV|WAV) file"):
        found.open_unlabelled(folder, options)


@pytest.mark.parametrize("task", SIGNALS)
def test_one_group_alone_cannot_be_divided(task, tmp_path):
    write_small(task, tmp_path, images=2, size=SIZES[task])
    with pytest.raises(DataError, match="set is empty"):
        opened(task, tmp_path)


def network_of(task, method="fedee", **options):
    found, method = task_named(task), open_method(method, options)
    return build_network(found, method, found.options(SIGNALS[task]), 2, run_seed=1)


def test_the_network_of_time_series_has_an_exit_behind_each_of_three_layers():
    network = network_of("time_series")
    assert list(network.network.encoder.exits.values()) == [16, 32, 64]
    logits = network(torch.randn(5, 2, 40))
    assert logits.shape == (5, 4, 3)
    assert torch.equal(logits[:, -1], network.network.head(network.features(torch.zeros(5, 2, 40)))) is False
    network.eval()
    alone, together = torch.randn(1, 2, 40), torch.randn(1, 2, 40)
    both = network(torch.cat([alone, together]))
    assert torch.allclose(both, torch.cat([network(alone), network(together)]), atol=1e-5)


@pytest.mark.parametrize("task", SIGNALS)
@pytest.mark.parametrize("base", ["fedavg", "fedbn"])
def test_the_head_travels_and_the_exits_never_do(task, base):
    network = network_of(task, base=base)
    found = sharing(task_named(task), open_method("fedee", {"base": base}), network)
    assert {name for name in found.tensors if "head" in name}
    assert not any(name.startswith("exits") for name in (*found.tensors, *found.start))
    norms = {name for name in found.tensors if name.endswith("running_mean")}
    assert bool(norms) == (base == "fedavg")


def test_what_a_network_of_time_series_costs_is_counted():
    network, window = network_of("time_series", "fedavg"), torch.zeros(1, 2, 32)
    by_hand = 2 * (32 * 16 * 2 * 5 + 16 * 32 * 16 * 5 + 8 * 64 * 32 * 5 + 64 * 3)
    assert flops(network, window) == by_hand
    cost = model_cost(network, window)
    assert cost.parameters == (16 * 2 + 32 * 16 + 64 * 32) * 5 + 2 * (16 + 32 + 64) + 65 * 3


def test_noise_is_added_to_windows_in_deviations_of_their_channels(data):
    (window, *_) = opened("time_series", data / "time_series" / "north").test
    noisy = with_noise(window, 0.25, 1)
    assert noisy.image.dtype == np.float32
    assert 0.3 < (noisy.image - window.image).std() < 0.7
    assert (with_noise(window, 0.25, 1).image == noisy.image).all()


@pytest.mark.parametrize("task", SIGNALS)
def test_a_probe_reads_the_features_of_signals(task, data):
    found = task_named(task)
    options = found.options(SIGNALS[task] | {"probe_folds": "of_people"})
    images = found.open_images(data / task / "north", options)
    assert 0.0 <= probe_score(found, network_of(task, "fedavg"), images, 1) <= 1.0


@pytest.mark.parametrize("task", SIGNALS)
def test_a_probe_of_a_new_run_divides_no_person_and_of_an_older_one_no_piece(task, data, tmp_path):
    found, folder = task_named(task), data / task / "north"
    run = RunConfiguration(run="r", task=task, method="fedbn", sites=["north"], rounds=1, task_options=SIGNALS[task])
    older, newer = (found.options(each.task_options) for each in (run, as_of_now(run)))
    assert found.open_images(folder, older).groups == {}
    person_of = {row["id"]: row["group"] for row in table_of(folder)}
    images = found.open_images(folder, newer)
    assert all(images.group_of(each) == person_of[unit_of(each.id)] for each in images.samples)
    shutil.copytree(folder, tmp_path / "site")
    table = tmp_path / "site" / "recordings.csv"
    table.write_text("\n".join(line.rpartition(",")[0] for line in table.read_text().splitlines()) + "\n")
    images = found.open_images(tmp_path / "site", newer)
    assert all(images.group_of(each) == unit_of(each.id) for each in images.samples)


# --- training -----------------------------------------------------------------------------------------------


def run_of(task, method, rounds, options=None, privacy=None):
    return RunConfiguration(
        run="signals",
        task=task,
        method=method,
        sites=list(SITES),
        rounds=rounds,
        seed=2,
        batch_size=8,
        learning_rate={"initial": 0.003, "period": 1},
        method_options=options or {},
        task_options=SIGNALS[task],
        privacy=privacy,
    )


@pytest.mark.parametrize("base", ["fedavg", "fedbn"])
@pytest.mark.parametrize("task", SIGNALS)
def test_early_exits_learn_of_signals(task, base, data, tmp_path):
    run = run_of(task, "fedee", 3, {"base": base})
    outcome = run_rounds(run, {site: data / task / site for site in SITES}, tmp_path)
    for site in SITES:
        before, after = (outcome.rows[aggregate][site][0] for aggregate in (0, run.rounds))
        assert before.scores["auroc"] < 0.7
        assert after.scores["auroc"] > 0.85
        assert after.loss < before.loss
        assert outcome.tests[site].scores["auroc"].value > 0.85
    first, second = (final.network().state_dict() for final in outcome.finals.values())
    assert torch.equal(first["network.head.classify.weight"], second["network.head.classify.weight"])
    assert not torch.equal(first["exits.0.2.weight"], second["exits.0.2.weight"])


@pytest.mark.parametrize("method", ["feduaa", "moon", "fedap", "fedrep", "mdt", "mc_dropout", "deep_ensembles"])
def test_other_methods_take_time_series(method, data, tmp_path):
    outcome = run_rounds(
        run_of("time_series", method, 1), {site: data / "time_series" / site for site in SITES}, tmp_path
    )
    assert all(score.scores["auroc"].value is not None for score in outcome.tests.values())


def test_a_private_run_takes_time_series(data, tmp_path):
    run = run_of("time_series", "fedee", 1, privacy={"target_epsilon": 8, "delta": 0.001, "max_grad_norm": 1.0})
    run = run.model_copy(update={"batch_size": 1000})  # all windows in each step: that ε is reckoned at once
    outcome = run_rounds(run, {site: data / "time_series" / site for site in SITES}, tmp_path)
    assert all(0 < spent <= 8 for spent in outcome.spent.values())


# --- what an offer costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stride", "overlap"), [(1, 5000), (2, 2500), (4999, 2), (5000, 1), (6000, 1)])
def test_windows_that_overlap_show_each_moment_as_often_and_are_declined(stride, overlap):
    """A stride of 1 would have a hospital learn thousands of times as much as the number of rounds says."""
    options = {"window": 5000, "stride": stride}
    run = RunConfiguration(
        run="r", task="time_series", method="mean", sites=["a"], rounds=3, task_options=options, batch_size=8
    )
    found = requirements(run)
    assert found.views == 3 * overlap
    told = "times one image may be shown in the whole run are more than this hospital's 5,000"
    assert any(told in sentence for sentence in excesses(Policy(), found)) == (3 * overlap > 5000)


def test_the_answers_of_all_passes_take_memory():
    def memory(passes):
        return requirements(
            RunConfiguration(
                run="r",
                task="octa_segmentation",
                method="mc_dropout",
                sites=["a"],
                rounds=1,
                task_options={"image_size": 512, "widths": [2, 4]},
                method_options={"passes": passes},
            )
        ).memory_bytes

    answers_of_one_pass = 2 * 512**2  # classes, pixels; images with masks are scored one by one
    assert memory(100) - memory(50) == 4 * 2 * answers_of_one_pass * 50
