"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from deploy.local import synthetic_fundus, synthetic_octa
from shared.audit.closing import Closing, tree_digest
from shared.audit.report import LEAVES
from shared.exchange import names
from shared.exchange.encryption import Content, EncryptionKey, decrypted, run_key
from shared.exchange.names import MessageRef, ref_at
from shared.exchange.readme import KNOWN_TEXTS, README_TEXT
from shared.exchange.records.answers import Consent, Quantiles, Reliability, Withdrawal
from shared.exchange.records.files import RECORDS
from shared.exchange.records.messages import Federation, Handover, Manifest, Phase, SiteCard, Status
from shared.exchange.records.run import (
    Cosine,
    ExternalTrainer,
    Falling,
    Krum,
    Line,
    Mean,
    Median,
    Plugin,
    Privacy,
    RunConfiguration,
    Start,
    StopAfter,
    TrimmedMean,
)
from shared.exchange.records.surveys import BIT_DEPTHS, COLOURS, FORMATS, MAKERS, Sheet, SignedSheet, Spread, Survey
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import IF_SAID, CountText, DecimalText, Sentence, Software
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.records.wire import Encrypt, FileEntry, Wire
from shared.exchange.signing import SigningKey, digest_of, enrolment_code, open_signed
from shared.exchange.tables import is_declared
from shared.exchange.trust import Peer
from shared.folder.capabilities import TEXTS
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import REFERENCES
from shared.learning.methods.terms import TERMS as METHOD_TERMS
from shared.learning.methods.terms import Over
from shared.learning.objectives import CrossEntropy, Evidential, Objective
from shared.learning.schedules import order_of_asking
from shared.learning.seeds import seed_for
from shared.learning.tasks import TASK_NAMES, TERMS, task_named
from shared.learning.training import evaluate
from tests.learning.small_sites import LABELS, SIGNALS, write_small

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()
KEY = SigningKey(b"\x01" * 32)
PRODUCT = ("aggregator", "deploy", "dropfed", "shared", "site_client", "studies")
NARRATED = (
    "aggregator/daemon.py",
    "aggregator/folder_sync.py",
    "aggregator/rounds.py",
    "shared/exchange/inbox.py",
    "shared/exchange/outbox.py",
    "shared/exchange/trust.py",
    "shared/learning/aggregation.py",
    "shared/learning/answers.py",
    "shared/learning/combine.py",
    "shared/learning/losses.py",
    "shared/learning/methods/fedee.py",
    "shared/learning/round_engine.py",
    "shared/learning/uncertainty.py",
    "site_client/daemon.py",
    "site_client/round_work.py",
    "site_client/rounds.py",
    "site_client/train.py",
)
"""A round from top to bottom: these say which section each of their steps follows."""
CITED = re.compile(r"protocol (\d+\.\d+(?:(?:, | and )\d+\.\d+)*)(?:, steps? (\d+)(?: (?:to|and) (\d+))?)?")


def sections() -> dict[str, str]:
    """Each numbered section's text, by its number."""
    _, *parts = re.split(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", DOCUMENT, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def cited(path: Path) -> list[tuple[str, str]]:
    """The sections that a file cites, each with a step or an empty text; a citation may go over the end of a line."""
    text = re.sub(r"\s*\n\s*(?:#\s*)?", " ", path.read_text())
    return [
        (number, step)
        for numbers, *steps in CITED.findall(text)
        for number in re.findall(r"[\d.]+", numbers)
        for step in steps
    ]


def test_all_sections_are_numbered_in_their_order() -> None:
    headings = re.findall(r"^#{2,} (.*)$", DOCUMENT, re.MULTILINE)
    assert len(headings) == len(sections())
    chapter = part = 0
    for number in sections():
        if "." in number:
            part += 1
            assert number == f"{chapter}.{part}"
        else:
            chapter, part = chapter + 1, 0
            assert number == str(chapter)


def test_every_section_that_the_code_cites_is_there() -> None:
    known = sections()
    for path in (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))):
        for number, step in cited(path):
            assert number in known, (path, number)
            assert not step or re.search(rf"^{step}\. ", known[number], re.MULTILINE), (path, number, step)


@pytest.mark.parametrize("path", NARRATED)
def test_a_file_that_plays_a_part_in_a_round_cites_the_protocol(path: str) -> None:
    assert cited(ROOT / path)


def example() -> bytes:
    found = re.search(r"```json\n(.*?)\n```", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1].encode()


def test_the_example_manifest_is_accepted_and_is_what_the_code_writes() -> None:
    content = example()
    body, key = open_signed(content)
    assert key == KEY.public
    assert KEY.sign(body) == content
    message = Peer("retina", "north", "north", KEY.public).open_out_of_order(content, MessageRef("consent", "octa-1"))
    assert digest_of(content) == message.digest
    assert message.digest in DOCUMENT
    assert enrolment_code("cd" * 32, "retina", "north", KEY.public) in DOCUMENT


def test_the_closing_digests_are_the_codes() -> None:
    assert f"it is `{tree_digest([b'a', b'b', b'c'])}`" in DOCUMENT
    assert f"alone\n`{tree_digest([example()])}`" in DOCUMENT
    for field in (*Closing.model_fields, *Closing.OfSite.model_fields):
        assert f"`{field}`" in DOCUMENT or f'"{field}"' in DOCUMENT, field


def test_the_fixed_texts_are_the_codes() -> None:
    rows = re.findall(r"^\| (?:[12]|`(?:.*)`) \|(?: .* \|)? ([0-9]+) \| `([0-9a-f]{64})` \|$", DOCUMENT, re.MULTILINE)
    texts = {*TEXTS, *(text for known in KNOWN_TEXTS.values() for text in known)}
    assert sorted(rows) == sorted((str(len(text)), digest_of(text)) for text in texts)
    for text in TEXTS:
        assert f"| `{text.decode().strip()}` |" in DOCUMENT
    assert f"```text\n{README_TEXT.decode()}```" in DOCUMENT


@pytest.mark.parametrize(
    ("form", "accepted", "refused"),
    [
        (DecimalText, ["0.0", "-0.0", "1.0", "0.25", "1e-05", "1e+16"], ["1", "0.00001", "1e16", "1e-5", "inf", ""]),
        (CountText, ["0", "9" * 9, "fewer than 2", "fewer than 9999"], ["01", "1" * 10, "fewer than 1", "1.0", ""]),
        (Sentence, ["", "a " * 500], ["a" * 1001, "a\n", "\u00a0"]),
        (Software, ["dropfed 0.2.0"], ["", "dropfed", "Dropfed 1", "dropfed v1"]),
    ],
)
def test_values_have_the_forms_that_the_document_states(form: Any, accepted: list[str], refused: list[str]) -> None:
    adapter = TypeAdapter(form)
    for text in accepted:
        assert adapter.validate_python(text) == text
    for text in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)


def test_the_tree_names_every_message_with_its_files() -> None:
    tree = DOCUMENT.split("## 1. The tree")[1].split("\n\n")[1]
    described = {}
    for line in tree.splitlines():
        path, sender, *files = line.split()
        ref = ref_at(path.rstrip("/").replace("RUN", "run"))
        if ref is None:
            assert path in names.ROOT_FILES or names.is_lasting_record(path)
            continue
        assert sender == ("site" if ref.is_from_site else "aggregator")
        described[ref.kind] = {name.strip("[]") for name in files}
    assert described == {name: kind.files | kind.optional for name, kind in names.KINDS.items()}


def test_every_file_that_is_no_table_and_no_tensors_has_a_record() -> None:
    files = {name for kind in names.KINDS.values() for name in kind.files | kind.optional}
    assert {name for name in files if not names.is_weights(name)} - {names.METRICS} == RECORDS.keys()


def test_the_auditor_s_page_lists_every_file_of_a_site_in_the_tree() -> None:
    tree = DOCUMENT.split("## 1. The tree")[1].split("\n\n")[1]
    described = {names.MANIFEST, names.state_file("…"), "check-…/…"}  # which the text below the tree tells of
    for line in tree.splitlines():
        path, sender, *files = line.split()
        if sender == "site":
            is_message = path.endswith("/")
            described |= {name.strip("[]") for name in files} if is_message else {re.sub(r"[0-9]{4}", "…", path)}
    assert described == set(LEAVES)


def rows_below(head: str) -> list[list[str]]:
    """The cells of each row of the table of 6.11 whose head begins so."""
    found = sections()["6.11"].split(f"\n| {head} |")[1].split("\n\n")[0]
    return [line[2:-2].split(" | ") for line in found.splitlines()[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([a-z_][a-z0-9_]*)`", cell)


def test_the_table_of_run_yaml_has_the_keys_in_their_order() -> None:
    rows = rows_below("key")
    fields = RunConfiguration.model_fields
    assert [words(key)[0] for key, *_ in rows] == list(fields)
    left_out = {words(key)[0] for key, _, default in rows if default.startswith("left out")}
    assert left_out == {name for name, field in fields.items() if field.exclude_if is IF_SAID.exclude_if}
    must_be_said = {words(key)[0] for key, _, default in rows if default == "must be said"}
    assert must_be_said == {name for name, field in fields.items() if field.is_required()}
    for key, value, _ in rows:
        name = words(key)[0]
        inner = {
            "privacy": Privacy,
            "start": Start,
            "stop_after": StopAfter,
            "plugins": Plugin,
            "trainer": ExternalTrainer,
        }
        if name in inner:
            told = [word for word in words(value) if word in inner[name].model_fields]
            assert [*dict.fromkeys(told)] == list(inner[name].model_fields), name


def test_the_shapes_and_rules_of_run_yaml_have_their_keys_in_their_order() -> None:
    shapes = {shape: words(keys) for named, keys in rows_below("`shape`") for shape in words(named)}
    forms = {"cycle": Falling, "triangle": Falling, "line": Line, "cosine": Cosine}
    for name, form in forms.items():
        assert [*dict.fromkeys(shapes.pop(name))] == list(form.model_fields)
    assert not shapes
    rules = {words(rule)[0]: words(keys) for rule, keys in rows_below("`rule`")}
    assert rules == {
        name: list(form.model_fields)
        for name, form in {"mean": Mean, "median": Median, "trimmed_mean": TrimmedMean, "krum": Krum}.items()
    }


def test_the_options_of_run_yaml_are_the_codes() -> None:
    of_task = rows_below("key of `task_options`")
    for name, terms in TERMS.items():
        told = [key for keys, of, *_ in of_task for key in words(keys) if of == "all" or name in words(of)]
        assert sorted(told) == sorted(terms.form.model_fields), name
    of_method = rows_below("key of `method_options`")
    for name, method in METHOD_TERMS.items():
        if name in REFERENCES:
            continue
        told = [key for keys, of, _ in of_method for key in words(keys) if of == "all" or name in words(of)]
        assert sorted(told) == sorted(method.Options.model_fields), name
        assert issubclass(method, Over) == ("base" in told)
    for head, form in (("augmentation", Augmentation), ("split", SplitPlan)):
        assert [words(key)[0] for key, *_ in rows_below(f"key of `{head}`")] == sorted(form.model_fields)


def test_every_field_is_described() -> None:
    for record in (
        Manifest,
        FileEntry,
        Federation,
        SiteCard,
        Handover,
        Wire,
        Status,
        Consent,
        Withdrawal,
        Verdict,
        FinalCard,
        Sharing,
        Reliability,
        Quantiles,
        Survey,
        SignedSheet,
        Sheet,
        Spread,
    ):
        for field in record.model_fields:
            assert f"`{field}`" in DOCUMENT, (record.__name__, field)
    for word in (*FORMATS, *BIT_DEPTHS, *COLOURS, *MAKERS):
        assert f"`{word}`" in DOCUMENT, word
    for word in (*get_args(Phase), *get_args(Verdict.model_fields["status"].annotation), *names.KINDS):
        assert f"`{word}`" in DOCUMENT, word


def test_what_each_kind_answers_is_in_the_table() -> None:
    rows = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \| (?:digest of|the) `([a-z.]+)`", DOCUMENT, re.MULTILINE)
    described = {kind: answered for kinds, answered in rows for kind in re.findall("[a-z]+", kinds)}
    assert described.pop("offer") == names.SITE_CARD
    known = {kind: MessageRef(kind, "r").answers for kind in names.KINDS}
    assert described == {kind: ref.kind for kind, ref in known.items() if ref is not None}


def test_the_drawn_numbers_are_the_codes() -> None:
    assert f"`north` has {seed_for(2021, 3, 'north', 'selection')}." in DOCUMENT
    assert f'`seed(7, "round", 3, "augment")` is {seed_for(7, "round", 3, "augment")}.' in DOCUMENT
    sites = ["east", "north", "south"]
    assert order_of_asking(2021, 3, sites) == sorted(sites, key=lambda site: seed_for(2021, 3, site, "selection"))


def test_the_columns_of_any_table_are_the_codes() -> None:
    text = sections()["8.3"]
    scores = {
        *re.findall(r"`([a-z_]+)`", text.split("\n| `accuracy` |")[1].split("| `calibration_error` |")[0]),
        *("accuracy", "calibration_error", "misdiagnosis_auroc", "selective_accuracy_10", "selective_accuracy_90"),
        *("referral_share_90", "referral_share_95", "uncertainty_right", "uncertainty_wrong"),
    }
    endings = ["", *re.findall(r"`(_[a-z_]+)`", text.split("alone or with one of ")[1].split(". ")[0])]
    assert len(scores) == 18
    assert len(endings) == 6
    for column in (f"{score}{ending}" for score in scores for ending in endings):
        assert is_declared(column), column
    for column in ("accuracy_of_999", "images_of_0", "loss_ice", "epsilon", "micro_batch", "ood_auroc"):
        assert is_declared(column), column
    for column in ("accuracy_of_1000", "loss_other", "dice_of_0", "dice_mean_error", "ood_auroc_mean"):
        assert not is_declared(column), column


@pytest.mark.parametrize("name", TASK_NAMES)
@pytest.mark.parametrize("objective", [CrossEntropy(), Evidential(temperature=0.05, kl_weight=1.0)])
def test_every_column_of_a_table_is_described(name: str, objective: Objective, tmp_path: Path) -> None:
    task = task_named(name)
    if name == "dr_staging":
        synthetic_fundus.write_graded_site(
            tmp_path, style=synthetic_fundus.STYLES[0], images=10, size=32, seed=1, grades=4
        )
        options = task.options({"encoder": "small", "weights": "random", "image_size": 32})
    elif name in SIGNALS:
        options = task.options(SIGNALS[name])
        write_small(name, tmp_path, images=12, size=32)
    elif name == "image_classification":
        options = task.options({"encoder": "small", "weights": "random", "image_size": 32, "labels": [*LABELS]})
        write_small(name, tmp_path, images=10, size=32)
    elif name in {"rdr_classification", "fundus_disease"}:
        options = task.options({"encoder": "plain", "weights": "random", "image_size": 32, "hidden": [4]})
        write_small(name, tmp_path, images=10, size=32)
    else:
        synthetic_octa.write_site(tmp_path, style=synthetic_octa.STYLES[0], images=1, size=32, seed=1)
        options = task.options({"widths": [2, 2]})
    images = task.open_images(tmp_path, options)
    model = task.build_model(options, len(images.classes), seed=1)
    for column in evaluate(task, model, images.samples, objective).scores:
        of_image = column.removesuffix("_mean").removesuffix("_std") if task.labels_pixels else column
        first = re.sub(r"^accuracy_of_[0-9]+$", "accuracy_of_0", of_image)
        first = re.sub(r"^selective_accuracy_[0-9]+$", "selective_accuracy_10", first)
        assert f"`{first}`" in DOCUMENT, column
        assert is_declared(column), column


def test_the_encryption_is_the_codes(tmp_path: Path) -> None:
    in_hex = re.findall(r"`((?:[0-9a-f]{2}){32,})`", DOCUMENT.split("### 9.3 Encryption")[1].split("### 9.4 Seeds")[0])
    key, wrapped, ciphertext = in_hex
    own, other = EncryptionKey(b"\x01" * 32), EncryptionKey(b"\x02" * 32)
    records: dict[str, Any] = {"federation": "retina", "site": "north", "created": "2026-11-21T09:30:00Z"}
    federation = Federation(
        aggregator_key=KEY.public, aggregator_encryption_key=other.public, site_key=KEY.public, files={}, **records
    )
    card = SiteCard(key=KEY.public, encryption_key=own.public, software="", enrolment="00" * 32, **records)
    found = run_key(own, federation, card, "octa-1")
    assert found.key.hex() == key
    content = found.unwrap(wrapped, MessageRef("update", "octa-1", 1), names.SITE_MODEL)
    assert content == Content(b"\x07" * 32, digest_of(b"weights"))
    assert wrapped.startswith("09" * 24)
    assert b"".join(decrypted(BytesIO(bytes.fromhex(ciphertext)), content, "")) == b"weights"
    for encrypt in get_args(Encrypt):
        assert f"`{encrypt}`" in DOCUMENT
