"""Whatever a malicious site or aggregator signs, nothing but the declared kinds passes: one test per way to smuggle."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
import zstandard
from PIL import Image
from safetensors.numpy import save

from shared.audit.contents import looks_like
from shared.audit.reading import Reading
from shared.audit.verify import verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_values, dump_yaml
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.exchange.records.values import now_text
from shared.exchange.records.wire import Wire
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.tables import MetricsRow, write_metrics
from shared.folder.local import LocalFolder
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played

PATIENTS = b"names of patients " * 40
UPDATE = MessageRef("update", RUN, 1).path


def image(form: str) -> bytes:
    content = io.BytesIO()
    Image.new("L", (32, 32), 7).save(content, form)
    return content.getvalue()


def archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("patients.txt", PATIENTS)
    return content.getvalue()


def model(value: float = 0.25, **more: np.ndarray) -> bytes:
    tensors = {name: np.full(each.shape, value, np.float32) for name, each in TENSORS.tensors.items()}
    return save(tensors | more)


def with_header(content: bytes, change: object) -> bytes:
    """A tensor file whose header's text is changed, of the same numbers."""
    size = struct.unpack("<Q", content[:8])[0]
    header = change(content[8 : 8 + size].decode())  # type: ignore[operator]
    header += " " * (-len(header) % 8)
    return struct.pack("<Q", len(header.encode())) + header.encode() + content[8 + size :]


def with_metadata(text: str, keys: Sequence[str] = ("patients",)) -> str:
    metadata = {"__metadata__": dict.fromkeys(keys, PATIENTS.decode())}
    return json.dumps(metadata | json.loads(text), separators=(",", ":"))


def with_gap(content: bytes) -> bytes:
    """Numbers that begin later than they could."""

    def later(text: str) -> str:
        entries = json.loads(text)
        for entry in entries.values():
            entry["data_offsets"] = [at + len(PATIENTS) for at in entry["data_offsets"]]
        return json.dumps(entries, separators=(",", ":"))

    moved = with_header(content, later)
    begin = 8 + struct.unpack("<Q", moved[:8])[0]
    return moved[:begin] + PATIENTS + moved[begin:]


def as_zip(content: bytes) -> bytes:
    """Numbers that are a zip archive: read from its end, as archives are."""
    end = b"PK\x05\x06" + bytes(18)
    return content[: -len(end)] + end


LARGE = {"a": np.zeros((300, 300), np.float32), "b": np.zeros(1, np.float32)}


def around(inside: bytes, behind: bytes) -> bytes:
    """A tensor file whose numbers hold, near their end, what an archive's reader finds."""
    content = save(LARGE)
    return content[: -len(inside + behind)] + inside + behind


def table(**scores: float) -> bytes:
    return write_metrics([MetricsRow(1, 0, "validation", "10", 0.1, 0.5, dict(scores))])


def of_image(epoch: int) -> MetricsRow:
    return MetricsRow(1, epoch, "validation", "1", 0.1, 0.5, {"dice_mean": 0.5})


DICOM = bytes(128) + b"DICM" + PATIENTS
MODELS = {
    "pickle": (pickle.dumps({"a": [1.0] * 100}), "it looks like a pickle"),
    "pytorch": (archive(), "it looks like a zip archive, which a PyTorch file is too"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(64), "it looks like an executable (ELF)"),
    "script": (b"#!/bin/sh\necho hello\n", "it looks like a script"),
    "dicom": (DICOM, "it looks like a DICOM image"),
    "jpeg": (image("JPEG"), "it looks like a JPEG image"),
    "appended-zip": (model() + archive(), "it looks like a zip archive"),
    "appended-text": (model() + PATIENTS, "is not a safetensors file"),
    "metadata": (with_header(model(), with_metadata), "carries free text"),
    "metadata-like-a-tensor": (
        with_header(model(), lambda text: with_metadata(text, ("dtype", "shape", "data_offsets"))),
        "carries free text",
    ),
    "white-space": (with_header(model(), lambda text: text.replace(",", " , ")), "carries free text"),
    "gap": (with_gap(model()), "is not a safetensors file"),
    "zip-in-the-numbers": (as_zip(model()), "can be read as a zip archive as well"),
    "another-tensor": (model(**{b64encode(PATIENTS).decode(): np.zeros(1, np.float32)}), "carries free text"),
    "bytes": (model(c=np.zeros(4, np.uint8)), "does not hold the run's"),
    "larger": (save({"a": np.zeros((3, 3), np.float32), "b": np.zeros(1, np.float32)}), "not F32"),
}
TABLES = {
    "png": (image("PNG"), "it looks like a PNG image"),
    "text": (PATIENTS, "is not a metrics table"),
    "extra-column": (table(dice_mean=0.5, patient=7.0), "nor the run lists: patient"),
    "long-column": (table(**{"x" * 48: 1.0}), "columns that neither the protocol describes nor the run lists"),
    "row-per-image": (write_metrics([of_image(0), of_image(0)]), "two rows are of the same epoch and split"),
    "epoch-per-image": (write_metrics([of_image(0), of_image(2)]), "rows of more epochs than the 1"),
    "cell": (table(dice_mean=0.5).replace(b"0.1,", b"eye-1.png,"), "is not the shortest text"),
    "digits": (table(dice_mean=0.5).replace(b"0.5\n", b"0.5" + b"7" * 1000 + b"\n"), "is not the shortest text"),
    "line-ends": (table(dice_mean=0.5).replace(b"\n", b"\r\n"), "a line does not end as the protocol says"),
    "header-alone": (table(dice_mean=0.5).partition(b"\n")[0] + b"\n", "the number of rows is wrong"),
    "no-share": (table(dice_mean=7.5), "dice_mean is 7.5, which is not in its range"),
    "more-cells": (table(dice_mean=0.5).replace(b"0.1,", b"0.1,eye,"), "another number of cells"),
    "utf-8": (table(dice_mean=0.5).replace(b"validation", "validación".encode()), "is not a metrics table"),
    "another-round": (table(dice_mean=0.5).replace(b"\n1,", b"\n2,"), "speaks of another round"),
}


def answered(run: Played, files: dict[str, bytes | Path]) -> list[tuple[str, str]]:
    """What is found after the site has signed this answer, with every hash right."""
    run.send("round", 1, run.to_site(1), "consent")
    run.sign_and_publish("update", 1, run.from_site(1, trains=True) | files)
    run.beat()
    return found(run)


def found(run: Played) -> list[tuple[str, str]]:
    return [(finding.file, finding.what) for finding in verify(LocalFolder(run.drop)).findings]


@pytest.fixture
def run(tmp_path: Path) -> Played:
    run = Played(tmp_path)
    run.offer_and_consent()
    return run


def test_what_is_agreed_to_passes(run: Played) -> None:
    assert answered(run, {names.SITE_MODEL: model(), names.METRICS: table(dice_mean=0.5, dice_std=0.1)}) == []


def test_a_model_of_no_finite_number_is_for_the_verdict_to_judge(run: Played) -> None:
    assert answered(run, {names.SITE_MODEL: model(float("nan"))}) == []


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_hides_in_a_tensor_file(kind: str, run: Played) -> None:
    content, what = MODELS[kind]
    ((file, said),) = answered(run, {names.SITE_MODEL: content})
    assert (file, what in said) == (f"{UPDATE}/{names.SITE_MODEL}", True), said


@pytest.mark.parametrize("kind", TABLES)
def test_nothing_hides_in_a_table(kind: str, run: Played) -> None:
    content, what = TABLES[kind]
    ((file, said),) = answered(run, {names.METRICS: content})
    assert (file, what in said) == (f"{UPDATE}/{names.METRICS}", True), said


@pytest.mark.parametrize(
    ("inside", "behind", "what"),
    [
        (archive(), b"", "a zip archive"),
        (archive(), bytes(400), "a zip archive"),
        (archive(), b"PK\x05\x06" + b"\xab" * 18 + bytes(400), "a zip archive"),  # a second end record that is none
        (bytes(200_000) + archive(), bytes(65_500), "a zip archive"),
        (b"PK\x06\x07" + bytes(16) + b"PK\x05\x06" + b"\xff" * 16 + bytes(2), bytes(400), "a zip archive"),
        (b"", b"PK\x05\x06" + b"\xab" * 18 + bytes(400), None),  # random numbers
        (b"", b"PK\x05\x06", None),
    ],
)
def test_an_archive_in_the_numbers_is_found_with_anything_behind_it(
    inside: bytes, behind: bytes, what: str | None, tmp_path: Path
) -> None:
    path = tmp_path / names.SITE_MODEL
    path.write_bytes(around(inside, behind))
    assert looks_like(path) == what


def test_a_frame_holds_nothing_behind_it(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(wire=Wire(compression="zstd"))

    def frames(beside: bytes) -> bytes:
        compressor = zstandard.ZstdCompressor()
        return save(
            {
                name: np.frombuffer(compressor.compress(bytes(4 * int(np.prod(each.shape)))) + beside, np.uint8)
                for name, each in TENSORS.tensors.items()
            }
        )

    wire = Wire(compression="zstd")
    sound = run.to_site(1) | {names.GLOBAL_MODEL: frames(b"")}
    run.sign_and_publish("round", 1, sound, wire=wire)
    assert found(run) == []
    (tmp_path / "second").mkdir()
    second = Played(tmp_path / "second")
    second.offer_and_consent(wire=wire)
    second.sign_and_publish("round", 1, sound | {names.GLOBAL_MODEL: frames(b"names")}, wire=wire)
    ((file, said),) = found(second)
    assert (file.endswith(names.GLOBAL_MODEL), "is not one zstd frame" in said) == (True, True)


def test_a_reliability_that_nobody_asked_for_is_found(run: Played) -> None:
    content = dump_values(
        {"theta": 0.5, "status": "all right", "n": "40", "n_wrong": None, "auroc": None, "quantiles": None}
    )
    ((file, said),) = answered(run, {names.RELIABILITY: content})
    assert (file, "was not asked for" in said) == (f"{UPDATE}/{names.RELIABILITY}", True)


def test_a_comment_is_no_place_to_hide(tmp_path: Path) -> None:
    """Nor are text blocks and directives, blanks and other ways to write a value; the record as it is written holds."""
    for number, (before, after, what) in enumerate(
        (
            (b"", b"", None),
            (b"# names of patients\n", b"", "is not written as the protocol writes this record, from line 1 on"),
            (b"", b"# names of patients\n", "is not written as the protocol writes this record"),
            (b"", b"\n", "is not written as the protocol writes this record"),
            (b"---\n", b"", "is not written as the protocol writes this record"),
            (b"%YAML 1.1\n---\n", b"", "holds a directive"),
            (b"", b"names: |\n  of patients\n", "names: is not a known key"),
        )
    ):
        (tmp_path / str(number)).mkdir()
        run = Played(tmp_path / str(number))
        run.offer_and_consent()
        files = run.to_site(1)
        content = files[names.ROUND_CONFIGURATION]
        assert isinstance(content, bytes)
        run.sign_and_publish("round", 1, files | {names.ROUND_CONFIGURATION: before + content + after})
        said = dict(found(run)).get(f"{MessageRef('round', RUN, 1).path}/{names.ROUND_CONFIGURATION}")
        assert (said is None) == (what is None)
        assert what is None or what in (said or "")


def test_a_round_asks_for_nothing_but_what_was_offered(run: Played) -> None:
    files = run.to_site(1)
    content = files[names.ROUND_CONFIGURATION]
    assert isinstance(content, bytes)
    values = yaml.safe_load(content) | {"augmentation": {"note": "names of patients"}}
    run.sign_and_publish("round", 1, files | {names.ROUND_CONFIGURATION: dump_values(values)})
    assert found(run) == [
        (f"{MessageRef('round', RUN, 1).path}/config.yaml", "asks for something else than the run that was offered")
    ]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (
            {"reason": "x" * 1001},
            "a well-formed Consent record: reason: must have 1000 characters or fewer",
        ),
        ({"reason": "one\ntwo"}, "a well-formed Consent record: reason: must be one line"),
        (
            {"reason": "\x1b[2J all holds"},
            "reason: must be one line of characters that can be printed",
        ),
        ({"reason": "\u202esdloh lla"}, "reason: must be one line of characters that can be printed (found '\\u202e"),
        ({"reason": "one\u2028two"}, "reason: must be one line of characters that can be printed (found 'one\\u2028"),
        ({"images": {"train": "12", "eye-1.png": "1"}}, "images.eye-1.png: must be"),
        ({"images": {"train": "names"}}, "images.train: must be of the form"),
        ({"patients": "many"}, "patients: is not a known key"),
        ({"x" * 5000: "many"}, f"{'x' * 100}"),
        ({"run": "octa-2"}, "speaks of another run"),
    ],
)
def test_a_consent_says_no_more_than_its_keys(record: dict[str, object], what: str, tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer()
    sound = {"run": RUN, "agrees": True, "reason": "yes", "images": {"train": "12"}}
    run.sign_and_publish("consent", 0, {names.CONSENT: canonical(sound | record)})
    ((file, said),) = found(run)
    assert (file, what in said) == (f"{MessageRef('consent', RUN).path}/{names.CONSENT}", True), said


def test_a_consent_that_does_not_hold_counts_as_a_no_here_as_at_the_aggregator(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer()
    content = canonical({"agrees": True, "images": {"train": "12"}, "reason": None, "run": RUN})
    run.sign_and_publish("consent", 0, {names.CONSENT: content})
    assert Reading(LocalFolder(run.drop)).ending(RUN) == "declined"
    consent = run.drop / MessageRef("consent", RUN).path / names.CONSENT
    consent.write_bytes(content.replace(b"true", b"True"))
    assert Reading(LocalFolder(run.drop)).ending(RUN) is None, "what was signed, nobody can tell"
    consent.unlink()
    assert Reading(LocalFolder(run.drop)).ending(RUN) is None, "nobody can tell"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"task_options": {"patients": "many"}}, "patients: is not a known key"),
        ({"method_options": {"patients": "many"}}, "patients: is not a known key"),
        ({"augmentation": {"patients": 1}}, "patients: is not a known key"),
        ({"split": {"patients": 1}}, "patients: is not a known key"),
        ({"task_options": {"group_pattern": "(x)" * 400}}, "a text of more than 1000 characters"),
        ({"task_options": {"group_pattern": "two\nlines"}}, "a control character"),
        ({"task_options": {"patients": [[[[[[[[["many"]]]]]]]]]}}, "or values nested too deeply"),
        ({"task": "mind-reading"}, "there is no 'mind-reading'"),
    ],
)
def test_an_offer_holds_no_options_that_nobody_knows(options: dict[str, object], what: str, tmp_path: Path) -> None:
    run = Played(tmp_path)
    offered = run_configuration(run=RUN, sites=["north"], quorum=1, **options)
    sharing = Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    files = {names.RUN_CONFIGURATION: dump_yaml(offered), names.TENSORS: dump_yaml(sharing)}
    run.send("offer", 0, dict(files), None)
    ((file, said),) = found(run)
    assert (file, what in said) == (f"{MessageRef('offer', RUN).path}/{names.RUN_CONFIGURATION}", True), said


@pytest.mark.parametrize("name", [b64encode(PATIENTS).decode(), "a b", "a\nb", "x" * 65, "a..b", "é", "../a"])
def test_the_name_of_a_tensor_is_a_path_and_short(name: str, tmp_path: Path) -> None:
    run = Played(tmp_path)
    sharing = {"tensors": {name: {"dtype": "F32", "shape": [1]}}, "start": {}, "personal": []}
    with pytest.raises(ValueError, match="a tensor's path"):
        Sharing(tensors={name: TensorShape(dtype="F32", shape=[1])}, start={}, personal=[])
    offered = run_configuration(run=RUN, sites=["north"], quorum=1)
    content = dump_values(sharing)
    run.send("offer", 0, {names.RUN_CONFIGURATION: dump_yaml(offered), names.TENSORS: content}, None)
    ((file, said),) = found(run)
    assert (file, "a tensor's path" in said) == (f"{MessageRef('offer', RUN).path}/{names.TENSORS}", True), said


@pytest.mark.parametrize("value", ["2.0", "-0.1", "1.0000000000000002"])
@pytest.mark.parametrize("field", ["score", "tolerance", "theta", "weight"])
def test_a_verdict_tells_shares(field: str, value: str, run: Played) -> None:
    run.send("round", 1, run.to_site(1), "consent")
    run.send("update", 1, run.from_site(1, trains=True), "round")
    sound = {"run": RUN, "round": 1, "site": "north", "status": "accepted", "reason": "", "epsilon": None}
    shares = {"score": "0.9", "tolerance": "0.3", "theta": None, "weight": "1.0"}
    run.sign_and_publish("verdict", 1, {names.VERDICT: canonical(sound | shares | {field: value})})
    run.beat()
    ((file, said),) = found(run)
    assert file == f"{MessageRef('verdict', RUN, 1).path}/{names.VERDICT}"
    assert said.endswith(f"{field}: must be in [0, 1] (found '{value}')")


TIMES = [
    {"time": time} for time in ("2026-١١-21", "2026-02-31T99:00:00Z", "2026-02-30T09:00:00Z", "2026-02-3T09:00:00Z", "")
]


def test_a_heartbeat_says_no_more_than_its_keys(run: Played) -> None:
    key = SigningKey.at(run.drop.parent / "north" / "signing.key")
    sound = json.loads((run.drop / names.STATUS).read_bytes())["body"]
    for change in ({"trouble": "x" * 1001}, {"patients": "many"}, {"phase": "reading names"}, *TIMES):
        (run.drop / names.STATUS).write_bytes(key.sign(sound | change))
        ((file, said),) = found(run)
        assert (file, "is not a well-formed Status record: " in said) == (names.STATUS, True), change
    (run.drop / names.STATUS).write_bytes(key.sign(sound | {"time": now_text()}))
    assert found(run) == []


def test_the_readme_is_the_known_one_also_where_the_aggregator_signs_another(run: Played) -> None:
    key = SigningKey.at(run.drop.parent / "aggregator" / "signing.key")
    body = json.loads((run.drop / names.FEDERATION).read_bytes())["body"]
    files = {names.README: {"size": len(PATIENTS), "sha256": digest_of(PATIENTS)}}
    (run.drop / names.FEDERATION).write_bytes(key.sign(body | {"files": files}))
    (run.drop / names.README).write_bytes(PATIENTS)
    assert found(run) == [(names.README, "is not the text that protocol 2 has there")]
    (run.drop / names.FEDERATION).write_bytes(
        key.sign(body | {"files": {**files, "patients.txt": files[names.README]}})
    )
    assert "lists other files" in found(run)[0][1]
