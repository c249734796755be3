"""What ``dropfed-site check`` says of the machine, of the way a large file takes, and of the images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from filelock import FileLock
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from deploy.local.synthetic_signals import write_time_series, write_wave
from shared.check import Finding
from shared.exchange.reading import dump_yaml
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.folder.lock import LOCK
from shared.folder.round_trip import large_text
from shared.learning.data.division import deal
from shared.learning.data.headers import BURNT_IN, fields_that_may_name
from shared.learning.data.units import settled
from shared.learning.tasks import task_named
from shared.plurals import pluralize
from site_client import machine
from site_client.cli import main
from site_client.division import Budget, Kept, division_here, keep
from site_client.folders import UNDEALT
from site_client.machine import unit_of
from site_client.own_images import image_files
from tests.federation.running import POLICY, TASK, Federation, run_configuration, staging_run, write_data
from tests.folder.faulty import FaultyServer, Handler
from tests.learning.small_sites import SIGNALS, write_small
from tests.played import RUN, Played


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two sites that have joined; no daemon runs."""
    with Federation(tmp_path_factory.mktemp("federation"), images=12) as federation:
        yield federation


@pytest.fixture
def north(federation: Federation, tmp_path: Path) -> Path:
    """A copy of north's work directory, to spoil."""
    shutil.copytree(federation.site("north"), tmp_path / "north")
    return tmp_path / "north"


def check(work: Path, *options: str) -> Result:
    result = CliRunner().invoke(main, ["check", "--work", str(work), *options], env={"DROPFED_PASSWORD": ""})
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def lines(work: Path, *options: str) -> list[Finding]:
    return [Finding(**finding) for finding in json.loads(check(work, "--json", *options).output)["findings"]]


def line(found: list[Finding], begins: str) -> Finding:
    (one,) = [finding for finding in found if finding.text.startswith(begins)]
    return one


# --- this machine, and the way -----------------------------------------------------------------------------------


def test_the_two_forms_say_the_same_and_end_alike(north: Path) -> None:
    text, found = check(north, "--quick"), lines(north, "--quick")
    assert text.exit_code == 0
    *told, in_all = text.output.splitlines()
    assert [each for each in told if "GB left" not in each] == [
        f"{finding.grade:8} {finding.text}" for finding in found if "GB left" not in finding.text
    ]
    warnings = sum(finding.grade == "warning" for finding in found)
    assert in_all == f"in all   0 problems, {pluralize(warnings, 'warning')}"
    (north / "password").write_bytes(b"wrong")
    failed = check(north, "--quick", "--json")
    assert failed.exit_code == 1 and json.loads(failed.output)["problems"] == 1


def test_a_quick_check_says_what_it_leaves_out(north: Path) -> None:
    texts = [finding.text for finding in lines(north, "--quick")]
    assert "left out, as --quick says: the round trip of 16 MB, and the images" in texts
    assert not [text for text in texts if text.startswith(("round trip", "octa_segmentation"))]


def test_a_folder_of_images_that_is_not_there_is_told_quickly_too_and_why_the_daemon_ends_is_logged(
    north: Path,
) -> None:
    settings = yaml.safe_load((north / "site.yaml").read_bytes())
    (north / "site.yaml").write_text(yaml.safe_dump(settings | {"data": {TASK: "/nowhere"}}))
    found = check(north, "--quick")
    assert found.exit_code == 1
    assert f"data: {TASK}: there is no folder /nowhere; correct the path" in found.output
    (north / "signing.key").unlink()
    ended = CliRunner().invoke(main, ["run", "--once", "--work", str(north)])
    assert ended.exit_code == 1
    assert "the daemon ends: " in (north / "log.txt").read_text()
    assert "signing.key" in (north / "log.txt").read_text()


def test_a_daemon_that_works_in_the_directory_is_told(north: Path) -> None:
    assert line(lines(north, "--quick"), "daemon: ").grade == "note"
    with FileLock(north / LOCK):
        assert line(lines(north, "--quick"), "daemon: ").text.startswith("daemon: one works in this directory")


def test_a_unit_that_names_the_directory_is_found(tmp_path: Path) -> None:
    unit = tmp_path / "dropfed-site-north.service"
    for text, names_it in (
        ("ExecStart=/x/dropfed-site run --work /srv/north\n", True),
        ('ExecStart=/x/python -m site_client.cli "run" "--work" "/srv/north"\n', True),
        ("Environment=DROPFED_WORK=/srv/north/\n", True),
        ("ExecStart=/x/dropfed-site run --work /srv/north2\n", False),
        ("ExecStart=/x/dropfed-site run --work /srv\n", False),
    ):
        unit.write_text(text)
        assert (unit_of(Path("/srv/north"), (str(tmp_path), "/nowhere")) == unit) is names_it
    unit.unlink()
    (tmp_path / "other.service").write_text("ExecStart=/x --work /srv/north\n")
    assert unit_of(Path("/srv/north"), (str(tmp_path),)) is None


def test_what_the_policy_does_not_name_and_what_is_not_here_is_told(north: Path) -> None:
    told = "site.yaml: policy: "
    assert not [each for each in lines(north, "--quick") if each.text.startswith(told)]
    settings = yaml.safe_load((north / "site.yaml").read_bytes())
    policy = settings["policy"]
    policy["tasks"].remove("dr_staging")
    policy["methods"] = [*(name for name in policy["methods"] if name not in ("moon", "fedrep")), "fedavgm"]
    (north / "site.yaml").write_text(yaml.safe_dump(settings))
    assert [each.text for each in lines(north, "--quick") if each.text.startswith(told)] == [
        told + "tasks: does not name dr_staging; a run by these is declined for good",
        told + "methods: does not name fedrep, moon; a run by these is declined for good",
        told + "methods: fedavgm: is neither a file nor in a wheel here, and a run by it would be declined for good; "
        "install it, or take the name out",
    ]


@pytest.mark.parametrize(("mebibytes", "grade"), [(4096 - 300, "ok"), (3 << 10, "warning"), (2 << 10, "warning")])
def test_a_machine_of_4_gb_has_enough_memory(
    mebibytes: int, grade: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine of 4 GiB, of which its kernel keeps a part for itself, has what the documents ask for."""
    monkeypatch.setattr(machine, "memory_bytes", lambda: mebibytes << 20)
    assert [each.grade for each in machine.look_at_room(tmp_path) if each.text.startswith("memory: ")] == [grade]


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 1 << 30, 0))
    (found,) = (each for each in machine.look_at_room(tmp_path) if each.text.startswith("disk: "))
    assert (found.grade, found.text) == ("problem", f"disk: the disk with {tmp_path} is full: free some space there")


def test_a_large_file_goes_and_comes_back(federation: Federation, north: Path) -> None:
    found = line(lines(north), "round trip: ")
    assert found.grade == "ok"
    assert "16 MB came back as they were sent" in found.text and "a model of 100 MB takes about" in found.text
    assert list(federation.folder("north").iterdir()) == []
    assert not (north / "transfer.json").exists()


def test_the_models_size_is_that_of_the_newest_run_and_limits_count(federation: Federation, tmp_path: Path) -> None:
    played = Played(tmp_path)
    shape = TensorShape(dtype="F32", shape=[25_000_000])
    run = dump_yaml(staging_run(run=RUN, sites=["north"], quorum=1, wire={"numbers": "float16"}))
    tensors = dump_yaml(Sharing(tensors={"a": shape}, start={}, personal=[], to_site={"control": {"a": shape}}))
    played.send("offer", 0, {"run.yaml": run, "tensors.yaml": tensors}, None)
    work = tmp_path / "north"
    shutil.copy(federation.site("north") / "password", work / "password")
    federation.change(
        work / "site.yaml", url=f"http://127.0.0.1:{federation.port}/north", limits={"upload_megabits": 8.0}
    )
    found = line(lines(work), "round trip: ")
    told = f"a round of run {RUN} (50 MB up, 150 MB down) takes, as site.yaml, limits: has it, about 50 s up"
    assert told in found.text


@pytest.mark.parametrize(("numbers", "is_told"), [(1 << 30, True), (7, False)])
def test_a_run_that_takes_more_than_is_left_is_warned_of_while_it_waits(
    numbers: int, is_told: bool, federation: Federation, tmp_path: Path
) -> None:
    played = Played(tmp_path)
    files = played.to_offer(rounds=9000, keep="all")
    tensors = Sharing(tensors={"a": TensorShape(dtype="F32", shape=[numbers])}, start={}, personal=[])
    played.send("offer", 0, files | {"tensors.yaml": dump_yaml(tensors)}, None)
    work = tmp_path / "north"
    federation.change(work / "site.yaml", url=played.drop.as_uri(), data={})
    told = [each for each in lines(work, "--quick") if each.text.startswith("room: run ")]
    warning = f"room: run {RUN} takes up to 77318 GB of the folder beside its offer (keep: all), more than is left"
    assert [(each.grade, each.text.startswith(warning)) for each in told] == [("warning", True)] * is_told


def test_a_server_that_takes_no_large_file(
    faulty: FaultyServer, federation: Federation, north: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nginx does by default."""
    behave = Handler.behave
    monkeypatch.setattr(Handler, "behave", lambda self: (413, b"") if len(self.body) > 1 << 20 else behave(self))
    federation.change(north / "site.yaml", url=faulty.url)
    (problem,) = [finding.text for finding in lines(north) if finding.grade == "problem"]
    assert "is larger than the server accepts: have its upload limit raised" in problem


def test_what_comes_back_changed_is_a_problem(
    faulty: FaultyServer, federation: Federation, north: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave = Handler.behave

    def spoil(self: Handler) -> tuple[int, bytes]:
        status, body = behave(self)
        return status, body.replace(large_text()[:32], bytes(32)) if self.command == "GET" else body

    monkeypatch.setattr(Handler, "behave", spoil)
    federation.change(north / "site.yaml", url=faulty.url)
    (problem,) = [finding.text for finding in lines(north) if finding.grade == "problem"]
    assert "came back with other bytes: something on the way changes what passes" in problem


# --- images ------------------------------------------------------------------------------------------------------


@pytest.fixture
def graded(federation: Federation, north: Path, tmp_path: Path) -> Path:
    """North's images for staging, of grades 0 to 3, to spoil."""
    write_data("dr_staging", tmp_path / "graded", 0, 24, seed=3)
    federation.change(north / "site.yaml", data={"dr_staging": str(tmp_path / "graded")})
    return tmp_path / "graded"


def of_images(work: Path) -> list[Finding]:
    return [finding for finding in lines(work) if finding.text.startswith(("dr_staging: ", "octa_segmentation: "))]


def test_counts_by_class_and_split_add_up(graded: Path, north: Path) -> None:
    found = line(of_images(north), "dr_staging: a run with the usual settings would divide them, for example, into")
    parts = found.text.partition("into ")[2].split("; ")
    assert [part.split()[0] for part in parts] == ["train", "validation", "test"]
    by_split = [[int(each.split(": ")[1]) for each in part.partition("(")[2][:-1].split(", ")] for part in parts]
    assert [sum(counts) for counts in by_split] == [int(part.split()[1]) for part in parts]
    labels = (graded / "labels.csv").read_text().splitlines()[1:]
    grades = [int(label.split(",")[1]) for label in labels]
    assert [sum(column) for column in zip(*by_split, strict=True)] == [grades.count(grade) for grade in range(4)]


def test_of_a_segmentation_pixels_are_counted(north: Path) -> None:
    found = line(
        of_images(north), "octa_segmentation: a run with the usual settings would divide them, for example, into"
    )
    assert "% of pixels" in found.text and "vessel: " in found.text


def test_scans_of_several_pictures_are_counted_as_scans(federation: Federation, north: Path, tmp_path: Path) -> None:
    write_small("rdr_classification", tmp_path / "scans", images=6, size=32)
    federation.change(north / "site.yaml", data={"rdr_classification": str(tmp_path / "scans")})
    found = [finding for finding in lines(north) if finding.text.startswith("rdr_classification: ")]
    assert "problem" not in {finding.grade for finding in found}, found
    assert line(found, "rdr_classification: 6 labelled images in")
    assert line(found, "rdr_classification: no image lies in two splits")


def test_recordings_have_their_own_table_of_groups_and_silence_makes_no_copies(
    federation: Federation, north: Path, tmp_path: Path
) -> None:
    folder, rng = tmp_path / "sounds", np.random.default_rng(1)
    folder.mkdir()
    rows = ["id,file,label"]
    for number in range(15):
        sound = rng.uniform(-0.5, 0.5, 10 * 2000)
        sound[: 5 * 2000] = 0
        write_wave(folder / f"{number}.wav", sound, 2000)
        rows.append(f"{number},{number}.wav,{('normal', 'abnormal')[number % 2]}")
    (folder / "recordings.csv").write_text("\n".join(rows) + "\n")
    federation.change(north / "site.yaml", data={"spectrograms": str(folder)})
    found = lines(north)
    assert line(found, "spectrograms: no recording lies in two splits").grade == "ok"
    whose = line(found, "spectrograms: nobody has said whose each recording is: two recordings of a person may be ")
    until = "before the first run is agreed to or the first survey arrives"
    assert f"or a column group in recordings.csv, {until}" in whose.text
    in_other_bytes = (folder / "1.wav").read_bytes() + b"LIST\4\0\0\0INFO"
    (folder / "14.wav").write_bytes(in_other_bytes)
    splits = [f"{number},{('train', 'validation', 'test')[number % 3]}" for number in range(15)]
    (folder / "split.csv").write_text("\n".join(["id,split", *splits]) + "\n")
    torn = line(lines(north), "spectrograms: 1 recording lies in two splits under two names")
    remedy = "remove the copies, or put them into one group of recordings.csv"
    assert torn.text.endswith(f": 1 (validation) = 14 (test); {remedy}")


def test_empty_and_grey_masks_are_told(federation: Federation, north: Path, tmp_path: Path) -> None:
    shutil.copytree(federation.data_of("north"), tmp_path / "octa")
    federation.change(north / "site.yaml", data={TASK: str(tmp_path / "octa")})
    assert not [finding for finding in of_images(north) if " mask " in finding.text]
    empty, grey, *_ = sorted((tmp_path / "octa" / "masks").iterdir())
    size = Image.open(empty).size
    Image.new("L", size).save(empty)
    Image.linear_gradient("L").resize(size).save(grey)
    found = of_images(north)
    of_empty, of_grey = line(found, f"{TASK}: 1 mask is empty"), line(found, f"{TASK}: 1 mask has grey values")
    assert of_empty.grade == of_grey.grade == "warning"
    assert f", as masks/{empty.name}; " in of_empty.text and f", as masks/{grey.name}: " in of_grey.text
    assert of_empty.text.endswith(f"mark it; do so {UNDEALT}")
    assert of_grey.text.endswith(f"save what is meant as black and white; do so {UNDEALT}")


@pytest.mark.parametrize("is_table", [False, True])
def test_labels_that_no_run_has_named_yet_are_no_problem(
    federation: Federation, north: Path, tmp_path: Path, is_table: bool
) -> None:
    root = tmp_path / "animals"
    for place, label in enumerate(("newt", "toad", "frog")):
        folder = root / ("images" if is_table else label)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(15):
            grey = np.full((40, 40, 3), 40 + 50 * place + number, np.uint8)
            Image.fromarray(grey).save(folder / f"{label}{number}.png")
    if is_table:
        rows = [f"{path.stem},{path.stem.rstrip('0123456789')}" for path in (root / "images").iterdir()]
        (root / "labels.csv").write_text("\n".join(["id,label", *rows]) + "\n")
    federation.change(north / "site.yaml", data={"image_classification": str(root)})
    found = [finding for finding in lines(north) if finding.text.startswith("image_classification: ")]
    assert "problem" not in {finding.grade for finding in found}, found
    assert line(found, "image_classification: 45 labelled images in").text.endswith("classes: frog, newt, toad")


def test_of_classes_that_only_a_run_can_name_the_images_alone_are_counted(
    graded: Path, federation: Federation, north: Path
) -> None:
    table = graded / "labels.csv"
    table.write_text(table.read_text().replace("id,grade", "id,label"))
    federation.change(north / "site.yaml", data={"external": str(graded)})
    found = [finding for finding in lines(north) if finding.text.startswith("external: ")]
    assert "problem" not in {finding.grade for finding in found}, found
    assert line(found, "external: 24 labelled images in").text.endswith(str(graded))
    divided = line(found, "external: a run with the usual settings would divide them, for example, into train")
    assert "(" not in divided.text


def test_a_class_that_a_split_lacks_is_told(graded: Path, north: Path) -> None:
    names = [label.split(",") for label in (graded / "labels.csv").read_text().splitlines()[1:]]
    parts = [
        f"{name},{'train' if grade == '0' else 'test' if number % 2 else 'validation'}"
        for number, (name, grade) in enumerate(names)
    ]
    (graded / "split.csv").write_text("\n".join(["id,split", *parts]) + "\n")
    lacking, _ungrouped = [finding.text for finding in of_images(north) if finding.grade == "warning"]
    assert "train has none of mild, moderate, severe" in lacking
    assert "test has none of no DR" in lacking


def test_that_nobody_has_said_whose_images_are_is_told_until_they_are_dealt(
    federation: Federation, graded: Path, north: Path
) -> None:
    begins = "dr_staging: nobody has said whose each image is: both eyes of a person may be trained on and tested on; "
    assert line(of_images(north), begins).grade == "warning"
    names = [row.split(",")[0] for row in (graded / "labels.csv").read_text().splitlines()[1:]]
    groups = graded / "split.csv"
    groups.write_text("\n".join(["id,group", *(f"{name},{number // 2}" for number, name in enumerate(names))]) + "\n")
    assert begins not in " ".join(finding.text for finding in of_images(north))
    groups.unlink()
    federation.change(north / "site.yaml", groups={"dr_staging": ".+"})  # each is of another person
    assert begins not in " ".join(finding.text for finding in of_images(north))
    federation.change(north / "site.yaml", groups={})
    write_division(north, graded)
    assert begins not in " ".join(finding.text for finding in of_images(north))  # now it would divide them anew


def test_blocks_that_are_scored_and_of_one_or_two_people_are_told(
    federation: Federation, graded: Path, north: Path
) -> None:
    names = [row.split(",")[0] for row in (graded / "labels.csv").read_text().splitlines()[1:]]
    federation.change(north / "site.yaml", policy=POLICY.model_copy(update={"minimum_count": 6}).model_dump())
    told = {}
    for images in (6, 2):  # of each person
        groups = [f"{name},{number // images}" for number, name in enumerate(names)]
        (graded / "split.csv").write_text("\n".join(["id,group", *groups]) + "\n")
        told[images] = [finding for finding in of_images(north) if "of fewer than 3 patients" in finding.text]
    assert [(finding.grade, finding.text.partition(",")[0]) for finding in told[6]] == [
        ("warning", "dr_staging: 2 blocks of validation and test are of fewer than 3 patients or other groups")
    ]
    assert told[2] == []


def write_division(north: Path, graded: Path) -> None:
    """Deal the images, as a yes does."""
    division = division_here(north)
    units = settled(task_named("dr_staging").units(graded), graded, None)
    blocks = deal(division.blocks, {"dr_staging": units}, POLICY.minimum_count, division.key)
    found = division.model_copy(update={"blocks": blocks})
    keep(north, Kept(found, Budget(division=found.mark)))


def test_a_copy_under_another_name_in_another_split_is_told(graded: Path, north: Path) -> None:
    images = sorted((graded / "images").iterdir())
    Image.open(images[0]).save(graded / "images" / "copy.tif")  # the same pixels in other bytes
    labels = graded / "labels.csv"
    labels.write_text(labels.read_text().rstrip() + "\ncopy,0\n")
    parts = [f"{image.stem},{name}" for image, name in zip(images, ["train", "validation", "test"] * 8, strict=True)]
    (graded / "split.csv").write_text("\n".join(["id,split", *parts, "copy,test"]) + "\n")
    found = line(of_images(north), "dr_staging: 1 image lies in two splits under two names")
    assert found.grade == "warning"
    assert f": {images[0].stem} (train) = copy (test); remove" in found.text
    (graded / "split.csv").write_text("\n".join(["id,split", *parts, "copy,train"]) + "\n")
    assert line(of_images(north), "dr_staging: no image lies in two splits").grade == "ok"


def test_text_beside_the_pixels_is_told_and_not_shown(graded: Path, north: Path) -> None:
    assert line(of_images(north), "dr_staging: the files name nobody beside their pixels").grade == "ok"
    first = sorted((graded / "images").iterdir())[0]
    text = PngInfo()
    text.add_text("Patient", "Erika Mustermann")
    Image.open(first).save(first, pnginfo=text)
    result = check(north)
    assert "1 of 24 files hold text beside their pixels that may name people (Patient), as images/" in result.output
    assert "never leaves" in result.output and "Mustermann" not in result.output


@pytest.mark.parametrize("suffix", ["jpg", "tif", "png"])
def test_fields_of_pictures(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"eye.{suffix}"
    image = Image.fromarray(np.zeros((40, 40), dtype=np.uint8))
    image.save(path, software="made by a program", dpi=(72, 72))
    assert fields_that_may_name(path) == []
    exif = Image.Exif()
    exif[0x013B] = "Dr. Example"  # Artist
    exif[0x9C9B] = "Erika".encode("utf-16-le")  # XPTitle
    image.save(path, exif=exif)
    assert fields_that_may_name(path) == ["Artist", "XPTitle"]


def test_fields_of_dicom(tmp_path: Path) -> None:
    path = tmp_path / "eye.dcm"
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    header = Dataset()
    header.file_meta = meta
    header.PatientName, header.PatientID, header.BurnedInAnnotation = "Mustermann^Erika", "", "YES"
    header.save_as(path, enforce_file_format=True)
    assert fields_that_may_name(path) == ["PatientName", BURNT_IN]
    header.PatientIdentityRemoved, header.BurnedInAnnotation = "YES", "NO"
    header.save_as(path, enforce_file_format=True)
    assert fields_that_may_name(path) == []


def test_what_to_do_about_files_is_said_with_until_when_they_may_be_changed(graded: Path, north: Path) -> None:
    first = sorted((graded / "images").iterdir())[0]
    text = PngInfo()
    text.add_text("Patient", "Erika Mustermann")
    Image.open(first).save(first, pnginfo=text)
    begins = "dr_staging: 1 of 24 files hold text beside their pixels"
    assert line(of_images(north), begins).text.endswith(f"export them without it; do so {UNDEALT}")
    write_division(north, graded)
    told = line(of_images(north), begins).text
    assert "export them without it; but these images are dealt: changed files are used by no run until" in told


def test_a_folder_of_images_that_is_a_link_is_looked_through_once(graded: Path, north: Path, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    (graded / "images").rename(drive)
    (graded / "images").symlink_to(drive, target_is_directory=True)
    (drive / "in-itself").symlink_to(graded, target_is_directory=True)
    first = sorted(drive.glob("*.png"))[0]
    (graded / ".trash").mkdir()
    Image.open(first).save(graded / ".trash" / "deleted.png")
    assert len(image_files(graded)) == 24
    (drive / "in-itself").unlink()  # a folder of images holds no other
    text = PngInfo()
    text.add_text("Patient", "Erika Mustermann")
    Image.open(first).save(first, pnginfo=text)
    told = line(of_images(north), "dr_staging: 1 of 24 files hold text beside their pixels")
    assert f", as images/{first.name}: " in told.text


def test_a_file_that_cannot_be_read_names_nobody_here(tmp_path: Path) -> None:
    for name in ("eye.dcm", "eye.png"):
        (tmp_path / name).write_bytes(b"not an image")
        assert fields_that_may_name(tmp_path / name) == []


def test_images_are_divided_as_the_newest_run_asks(federation: Federation, tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.offer_and_consent()
    write_data("octa_segmentation", tmp_path / "images", 0, 12, seed=5)
    settings = {"data": {"octa_segmentation": str(tmp_path / "images")}, "policy": POLICY.model_dump()}
    federation.change(tmp_path / "north" / "site.yaml", **settings)
    found = line(of_images(tmp_path / "north"), f"octa_segmentation: run {RUN} divides them into ")
    assert [part.split(" (")[0] for part in found.text.partition("into ")[2].split("; ")] == [
        "train 6",
        "validation 3",
        "test 3",
    ]
    few = POLICY.model_copy(update={"minimum_training_images": 7}).model_dump()
    federation.change(tmp_path / "north" / "site.yaml", policy=few)
    told = line(of_images(tmp_path / "north"), f"octa_segmentation: run {RUN} would train on 6 images here, and ")
    assert told.grade == "warning"
    assert "minimum_training_images in site.yaml (policy:) is 7: this site will decline it, and every" in told.text


def test_recordings_are_no_problem_before_a_run_says_what_it_reads_of_them(
    federation: Federation, tmp_path: Path
) -> None:
    played, task = Played(tmp_path), "time_series"
    write_small(task, tmp_path / "own", images=24, size=96)
    labels, channels = ("resting", "walking"), ("I", "II")
    write_time_series(
        tmp_path / "foreign", recordings=4, rows=96, seed=1, labels=labels, channels=channels, rate_hz=500
    )
    foreign = {task: str(tmp_path / "foreign" / "recordings")}
    settings = {"data": {task: str(tmp_path / "own")}, "out_of_distribution": foreign}
    federation.change(tmp_path / "north" / "site.yaml", **settings)
    found = lines(tmp_path / "north")
    assert not [each for each in found if each.grade == "problem" and each.text.startswith(task)]
    divided = line(found, f"{task}: a run with the usual settings would divide them").text
    assert sum(int(part.split()[1]) for part in divided.partition("into ")[2].split("; ")) == 24
    assert [each.text.partition("; ")[0] for each in found if "each recording lasts" in each.text] == [
        f"{task}: each recording lasts 4.8 s or more, at 20 Hz, with x, y",
        f"{task}: each recording lasts 0.192 s or more, at 500 Hz, with I, II",
    ]
    run = run_configuration(task=task, task_options=SIGNALS[task], augmentation={}, sites=["north"], quorum=1, run=RUN)
    tensors = Sharing(tensors={"a": TensorShape(dtype="F32", shape=[1])}, start={}, personal=[])
    played.send("offer", 0, {"run.yaml": dump_yaml(run), "tensors.yaml": dump_yaml(tensors)}, None)
    problems = [each.text for each in lines(tmp_path / "north") if each.text.startswith(f"{task}, as")]
    reads = f"{task}, as run {RUN} reads it: recordings/series-"
    assert len(problems) == 4 and all(text.startswith(reads) for text in problems)
    assert "needs one column each called x, y" in problems[0]


def test_a_division_that_is_lost_is_told_quickly_too(tmp_path: Path) -> None:
    played = Played(tmp_path)
    assert line(lines(tmp_path / "north", "--quick"), "division: ").grade == "ok"
    played.offer_and_consent()
    told = line(lines(tmp_path / "north", "--quick"), f"{tmp_path / 'north' / 'division.json'} and budget.json are not")
    assert told.grade == "problem"
