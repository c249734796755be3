"""What a run's rule prunes, and that nothing else may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.audit.verify import verify
from shared.exchange import names
from shared.exchange.encoding import most_bytes
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.exchange.records.wire import Wire
from shared.exchange.retention import may_be_removed
from shared.exchange.signing import canonical
from shared.folder.local import LocalFolder
from tests.federation.running import run_configuration
from tests.played import RUN, Played, scored_verdict

ROUNDS = st.integers(1, 30)
KINDS: list[Kind] = ["offer", "consent", "round", "update", "verdict", "final"]


@given(
    rule=st.sampled_from(["all", "best", "last 1", "last 3", "last 9999"]),
    ref=st.builds(MessageRef, st.sampled_from(KINDS), st.just(RUN), ROUNDS),
    settled=st.sets(ROUNDS),
    chosen=st.none() | ROUNDS,
    difference=st.booleans(),
)
def test_what_may_go(rule: str, ref: MessageRef, settled: set[int], chosen: int | None, difference: bool) -> None:
    kind, round_no = ref.kind, ref.round_no
    may = may_be_removed(rule, ref, settled=settled, chosen=chosen, difference=difference)
    newest = max(settled, default=0)
    if rule == "all" or kind not in ("round", "update"):
        assert not may
    elif rule == "best":
        is_needed = round_no == chosen and (kind == "update" or difference)
        assert may == (chosen is not None and not is_needed)
    else:
        newer = len(range(round_no, newest))
        assert may == (round_no in settled and newer >= int(rule.split()[1]))


@pytest.mark.parametrize(
    ("keep", "expected"),
    [("all", 4 * 60 + 20 + 40), ("best", 4 * 60 + 20 + 40), ("last 2", 3 * 60), ("last 9", 4 * 60 + 20 + 40)],
)
def test_what_a_run_takes_in_a_folder_is_what_its_rule_keeps(keep: str, expected: int) -> None:
    """Of each of 4 rounds 20 bytes come and 40 leave, half of these for the method; the final model has 40."""
    shapes = {"a": TensorShape(dtype="F32", shape=[10])}
    beside = {"c": {"a": TensorShape(dtype="F32", shape=[5])}}
    sharing = Sharing(tensors=shapes, start=shapes, frozen=["a"], personal=[], trained=beside)
    run = run_configuration(rounds=4, keep=keep, wire={"numbers": "float16"})
    assert most_bytes(run, sharing) == 40 + expected


def left(folder: Path) -> list[str]:
    """The tensor files that are there, below ``rounds/``."""
    rounds = folder / "runs" / RUN / "rounds"
    return sorted(path.relative_to(rounds).as_posix() for path in rounds.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("keep", "after_the_end"),
    [
        ("all", ["0001/from_site", "0001/to_site", "0002/from_site", "0002/to_site", "0003/to_site"]),
        ("last 1", ["0003/to_site"]),
        ("last 2", ["0002/from_site", "0002/to_site", "0003/to_site"]),
        ("best", ["0001/from_site"]),
    ],
)
def test_a_pruned_folder_holds(tmp_path: Path, keep: str, after_the_end: list[str]) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(keep, rounds=2)
    for round_no in (1, 2, 3):
        run.round(round_no, trains=round_no < 3)
        for end in (run.site, run.aggregator):
            end.outbox.prune(RUN)
        assert verify(LocalFolder(run.drop)).findings == []
    run.finish()
    for _ in range(2):  # twice is once
        for end in (run.site, run.aggregator):
            end.outbox.prune(RUN)
            assert [Path(path).parent.as_posix() for path in left(end.ledger.root)] == after_the_end
    assert [Path(path).parent.as_posix() for path in left(run.drop)] == after_the_end
    audit = verify(LocalFolder(run.drop))
    assert audit.findings == []
    assert len(audit.removed) == 5 - len(after_the_end)
    assert (run.drop / "runs" / RUN / "final" / names.FINAL_MODEL).exists()


def test_a_file_whose_removal_was_cut_off_goes_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Played(tmp_path)
    run.offer_and_consent("last 1")
    run.round(1, trains=True)
    run.round(2, trains=True)

    def cut_off(folder: LocalFolder, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(LocalFolder, "remove", cut_off)
        run.aggregator.outbox.prune(RUN)
    run.aggregator.outbox.prune(RUN)
    assert "0001/to_site/global.safetensors" not in left(run.drop) + left(run.aggregator.ledger.root)


def test_a_verdict_that_is_not_in_the_folder_yet_removes_nothing(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent("last 1")
    run.round(1, trains=True)
    run.send("round", 2, run.to_site(2), "consent")
    run.send("update", 2, run.from_site(2, trains=True), "round")
    answer = run.aggregator.ledger.message(MessageRef("update", RUN, 2))
    verdict = {names.VERDICT: canonical(scored_verdict(RUN, 2, "1.0").model_dump())}
    assert answer is not None
    run.aggregator.outbox.sign(MessageRef("verdict", RUN, 2), verdict, in_reply_to=answer.digest)
    run.aggregator.outbox.prune(RUN)
    assert "0001/to_site/global.safetensors" in left(run.drop)
    run.aggregator.outbox.publish()
    run.aggregator.outbox.prune(RUN)
    assert "0001/to_site/global.safetensors" not in left(run.drop)


def test_what_travels_beside_a_model_goes_with_it(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent("best", groups={"to_site": {"control": {}}, "trained": {"control": {}}})
    for round_no in (1, 2):
        run.round(round_no, trains=True, to_site=["control"], from_site=["control"])
    run.finish()
    for end in (run.site, run.aggregator):
        end.outbox.prune(RUN)
    kept = ["0001/from_site/model.safetensors", "0001/from_site/state-control.safetensors"]
    assert left(run.drop) == left(run.site.ledger.root) == left(run.aggregator.ledger.root) == kept
    audit = verify(LocalFolder(run.drop))
    assert sum("state-control" in path for path in audit.removed) == 3
    (run.drop / "runs" / RUN / "rounds" / kept[1]).unlink()
    found = [(finding.file, finding.what) for finding in verify(LocalFolder(run.drop)).findings]
    assert (f"runs/{RUN}/rounds/{kept[1]}", "is missing") in found


def test_a_kept_difference_keeps_what_it_differs_from(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent("best", Wire(difference=True))
    run.round(1, trains=True)
    run.round(2, trains=False)
    run.finish()
    for end in (run.site, run.aggregator):
        end.outbox.prune(RUN)
    assert [Path(path).parent.as_posix() for path in left(run.drop)] == ["0001/from_site", "0001/to_site"]
    audit = verify(LocalFolder(run.drop))
    assert audit.removed == [f"{MessageRef('round', RUN, 2).path}/{names.GLOBAL_MODEL}"]
    (run.drop / MessageRef("round", RUN, 1).path / names.GLOBAL_MODEL).unlink()
    findings = [(finding.file, finding.what) for finding in verify(LocalFolder(run.drop)).findings]
    assert (f"{MessageRef('round', RUN, 1).path}/{names.GLOBAL_MODEL}", "is missing") in findings


def test_what_no_rule_prunes_is_missing(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent("last 1")
    run.round(1, trains=True)
    run.round(2, trains=True)
    newest, older = (MessageRef("update", RUN, round_no) for round_no in (2, 1))
    (run.drop / older.path / names.SITE_MODEL).unlink()
    (run.drop / newest.path / names.SITE_MODEL).unlink()
    (run.drop / older.path / names.METRICS).unlink()
    audit = verify(LocalFolder(run.drop))
    assert [(finding.file, finding.what) for finding in audit.findings] == [
        (f"{older.path}/{names.METRICS}", "is missing"),
        (f"{newest.path}/{names.SITE_MODEL}", "is missing"),
    ]
    assert audit.removed == [f"{older.path}/{names.SITE_MODEL}"]
