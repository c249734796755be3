"""One federation in which all goes wrong that went wrong: north is a real site, south is played by the test.

Round 1: north trains, then the server, the aggregator and north die; they come back, and south answers without a model.
Round 2: south sends a pickle for a model. No model ever passes the tolerance check.
Round 3, the closing one: south's answer lacks its table.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from aggregator.overview import Overview, overview
from aggregator.store import RunStore
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import parse_yaml
from shared.exchange.records.messages import Manifest
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.values import now_text
from shared.exchange.records.verdicts import Verdict
from shared.exchange.tables import read_metrics
from shared.exchange.trust import open_yaml
from shared.exchange.weights import check_tensors
from shared.folder.webdav import WebDavFolder
from shared.settings import read_password
from site_client.division import BUDGET
from tests.canary import password_of, told_below
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.scripted import ScriptedSite, metrics

pytestmark = pytest.mark.timeout(600)
RESTLESS = {names.STATUS, "log.txt", "output.txt", "published.json", "trouble.txt", "transfer.json", "waited.json"}


class Planted:
    """Whoever unpickles it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._mark), "w")


def planted(mark: Path) -> bytes:
    """A model as ``torch.save`` writes it, which runs code when it is loaded."""
    content = io.BytesIO()
    torch.save({"weight": Planted(mark)}, content)
    return content.getvalue()


@dataclass
class Story:
    """What was seen on the way."""

    federation: Federation
    mark: Path  # made by code that must not run
    in_trouble: Overview  # the aggregator's overview while the server was dead
    before: dict[Path, bytes]  # what lay in folders and work directories before the restart
    verdicts: dict[int, Verdict]  # on south's answers, by round
    exit_code: int


def all_files(federation: Federation) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in federation.root.rglob("*")
        if path.is_file() and path.name not in RESTLESS and not path.name.startswith(".")
    }


def answer_without_table(south: ScriptedSite, round_no: int) -> None:
    """What no program of ours can sign: a well-signed answer that lacks a required file."""
    ref, sent = MessageRef("update", RUN, round_no), south.channel.ledger.message(MessageRef("round", RUN, round_no))
    head = south.channel.ledger.own_head
    assert sent is not None
    manifest = Manifest(
        kind="update",
        federation="retina",
        site="south",
        sender="south",
        run=RUN,
        round=round_no,
        seq=head.seq + 1,
        previous=head.digest,
        in_reply_to=sent.digest,
        created=now_text(),
        files={},
    )
    south.folder.create(ref.manifest, south.key.sign(manifest.model_dump()))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    run = run_configuration(rounds=2, tolerance=0.9999)
    mark = tmp_path_factory.mktemp("marks") / "executed"
    with Federation(tmp_path_factory.mktemp("federation"), run) as federation:
        daemons = [federation.start_aggregator(), federation.start_site("north")]
        south = ScriptedSite(federation, "south")
        south.consent()
        south.receive_round(1)
        answer = federation.aggregator / "sites" / "north" / "mirror" / MessageRef("update", RUN, 1).manifest
        federation.wait_until(answer.exists, "north's answer at the aggregator")

        federation.kill_server()
        troubles = [federation.aggregator / "sites" / site / "trouble.txt" for site in run.sites]
        federation.wait_until(lambda: any(map(Path.exists, troubles)), "the trouble")
        in_trouble = overview(federation.aggregator)
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
        before = all_files(federation)
        federation.start_server()
        aggregator = federation.start_aggregator()
        federation.start_site("north")

        south.answer(1, {names.METRICS: metrics(1)})
        verdicts = {1: south.verdict(1)}
        south.receive_round(2)
        south.answer(2, {names.METRICS: metrics(2), names.SITE_MODEL: planted(mark)})
        verdicts[2] = south.verdict(2)
        south.receive_round(3)
        answer_without_table(south, 3)
        verdicts[3] = south.verdict(3)
        exit_code = aggregator.wait(WAIT_S)
        federation.wait_until(lambda: exit_code or federation.has_final("north"), "the final model at north")
        federation.stop_all()
        yield Story(federation, mark, in_trouble, before, verdicts, exit_code)


def test_a_missing_file_turned_into_nan_or_a_crash(story: Story) -> None:
    """A file that did not come became NaN in the means, or ended the run; here its site is left out, and told why."""
    for round_no, reason in (
        (1, f"{MessageRef('update', RUN, 1).path}/model.safetensors: is missing from the answer"),
        (3, f"{MessageRef('update', RUN, 3).manifest}: "),
    ):
        verdict = story.verdicts[round_no]
        assert (verdict.status, verdict.score, verdict.weight) == ("omitted", None, None)
        assert reason in verdict.reason
    assert story.exit_code == 0
    card = RunStore(story.federation.aggregator, RUN).card()
    assert card is not None
    north = {}
    for round_no in (1, 2, 3):
        table = story.federation.folder("north") / MessageRef("update", RUN, round_no).path / names.METRICS
        north[round_no] = next(
            row.scores["dice_mean"] for row in read_metrics(table.read_bytes(), "") if row.epoch == 0
        )
    means = {aggregate: float(mean) for aggregate, mean in card.validation.items()}
    assert means == {"0": _mean(north[1], 0.5), "1": _mean(north[2], 0.5), "2": north[3]}


def _mean(*scores: float | None) -> float:
    return sum(score or 0.0 for score in scores) / len(scores)


def test_an_exception_variable_that_eats_the_round_counter(story: Story) -> None:
    """An error was caught under the round counter's own name; here trouble in a round leaves the round what it is."""
    assert (story.in_trouble.state, story.in_trouble.round) == ("open", 1)
    assert any(site.trouble for site in story.in_trouble.sites.values())
    after = overview(story.federation.aggregator)
    assert [site.trouble for site in after.sites.values()] == [None, None]
    for site in ("north", "south"):
        rounds = story.federation.folder(site) / names.RUNS / RUN / "rounds"
        assert sorted(path.name for path in rounds.iterdir()) == ["0001", "0002", "0003"]
        for round_no in (1, 2, 3):
            path = rounds / f"{round_no:04d}" / "to_site" / names.ROUND_CONFIGURATION
            assert open_yaml(path.read_bytes(), RoundConfiguration, "").round == round_no


def test_every_model_omitted(story: Story) -> None:
    """A round in which no model passed divided by nothing and crashed; here the last global model goes out again."""
    rounds = story.federation.folder("north") / names.RUNS / RUN / "rounds"
    sent = {path.read_bytes() for path in rounds.glob(f"*/to_site/{names.GLOBAL_MODEL}")}
    assert len(sent) == 1
    for round_no in (1, 2):
        verdicts = RunStore(story.federation.aggregator, RUN).verdicts(round_no) or {}
        assert {verdict.status for verdict in verdicts.values()} == {"omitted"}
        assert "does not exceed the tolerance" in verdicts["north"].reason
    assert story.exit_code == 0


def test_a_start_that_wipes_the_folder(story: Story) -> None:
    """Starting removed what lay in the folder; here all is still there, byte for byte, as in the work directories."""
    kept = [path for path in story.before if "rounds" in path.parts]
    assert any("folders" in path.parts for path in kept) and any("mirror" in path.parts for path in kept)
    after = all_files(story.federation)
    changed = {path.name for path, content in story.before.items() if after.get(path) != content}
    assert changed <= {BUDGET}  # in which a site notes, once a run is over, what that has really taken


def test_plain_text_passwords(story: Story, tmp_path: Path) -> None:
    """Passwords stood in scripts and settings; here each is in a file that its owner alone may read, nowhere else."""
    federation = story.federation
    owned = [federation.site("north") / "password", *(federation.aggregator / "passwords").iterdir()]
    assert len(owned) == 3
    assert {path.stat().st_mode & 0o777 for path in owned} == {0o600}
    assert {read_password(path) for path in owned} == {password_of("north"), password_of("aggregator")}
    assert told_below(federation.root) == []
    shown = tmp_path / "password"
    shown.write_text("for all to read")
    shown.chmod(0o644)
    with pytest.raises(ActionRequiredError, match="chmod 600"):
        read_password(shown)
    with pytest.raises(ActionRequiredError, match="in the clear"):
        WebDavFolder("http://cloud.example.org/dav", "north", password_of("north"))


def test_loading_that_runs_code(story: Story, tmp_path: Path) -> None:
    """Models and settings were loaded in ways that run code; here a pickle is no model, and YAML has no tags."""
    assert story.verdicts[2].status == "omitted"
    assert "model.safetensors: is not a safetensors file" in story.verdicts[2].reason
    assert not story.mark.exists()

    mark = tmp_path / "executed"
    for content in (planted(mark), pickle.dumps(Planted(mark))):
        model = tmp_path / names.GLOBAL_MODEL
        model.write_bytes(content)
        with pytest.raises(RejectedError, match="is not a safetensors file"):
            check_tensors(model, TensorList(tensors={}), "global.safetensors")
    tag = f"round: !!python/object/apply:builtins.open [{json.dumps(str(mark))}, w]"
    with pytest.raises(ConfigurationError, match="is not plain YAML"):
        parse_yaml(tag.encode(), RoundConfiguration, "config.yaml")
    assert not mark.exists()
    torch.load(io.BytesIO(planted(mark)), weights_only=False)
    assert mark.exists()  # it would have run
