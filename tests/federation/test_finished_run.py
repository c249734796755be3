"""What is left when a run has ended: the archive, the folder, and nothing that should not be there."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from safetensors.numpy import load_file

from aggregator.cli import main as aggregator_command
from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.folder.durable import hash_file, write_file
from shared.folder.local import LocalFolder
from site_client.division import BUDGET, DIVISION
from tests.canary import told_below
from tests.federation.running import RUN, WAIT_S, Federation, Setting


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("finished")) as federation:
        federation.change(federation.aggregator / "aggregator.yaml", log="json")
        federation.change(federation.site("north") / "site.yaml", log="json")
        federation.run_to_the_end()
        federation.stop_all()
        yield federation


def reported(federation: Setting) -> dict[str, Any]:
    """The document of `dropfed-aggregator report --json`."""
    path = federation.root / "report.json"
    options = ["report", RUN, "--json", "--output", str(path), "--work", str(federation.aggregator)]
    assert CliRunner().invoke(aggregator_command, options).exit_code == 0
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def assert_scores_are_those_of_the_tables(federation: Setting, said: dict[str, Any]) -> None:
    """Each cell of each table in the folders: a number where there is one, null where the cell is empty."""
    for of_round in said["rounds"]:
        for site, found in of_round["sites"].items():
            ref = MessageRef("update", RUN, of_round["round"])
            with (federation.folder(site) / ref.path / names.METRICS).open(newline="") as file:
                received = {row["split"]: row for row in csv.DictReader(file) if row["epoch"] == "0"}
            for split in ("validation", "test"):
                row, told = received[split], found[split]
                assert told["images"] == row["images"]
                assert told["loss"] == (float(row["loss"]) if row["loss"] else None)
                columns = row.keys() - {"round", "epoch", "split", "images", "learning_rate", "loss"}
                assert told["scores"] == {name: float(row[name]) if row[name] else None for name in columns}


def weight(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def files_below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hash_file(path)[1] for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_exactly_the_closed_list(finished: Federation) -> None:
    """Two rounds (one trains, one closes): every file of the protocol and no other."""
    round_1 = {
        "to_site/config.yaml",
        "to_site/global.safetensors",
        "from_site/metrics.csv",
        "from_site/model.safetensors",
    }
    round_2 = {"to_site/config.yaml", "to_site/global.safetensors", "from_site/metrics.csv"}
    messages = {
        "offer/run.yaml",
        "offer/tensors.yaml",
        "consent/consent.json",
        "final/card.json",
        "final/model.safetensors",
        *(f"rounds/0001/{name}" for name in round_1 | {"verdict/verdict.json"}),
        *(f"rounds/0002/{name}" for name in round_2 | {"verdict/verdict.json"}),
    }
    manifests = {f"{name.rsplit('/', 1)[0]}/manifest.json" for name in messages}
    expected = {f"runs/{RUN}/{name}" for name in messages | manifests} | names.ROOT_FILES.keys()
    for site in finished.run.sites:
        assert set(files_below(finished.folder(site))) == expected


def test_no_secret_no_path_and_no_image_name_leaves_the_site(finished: Federation) -> None:
    """No password, enrolment secret or private key is where none belongs, and nothing of the data is in a folder."""
    assert told_below(finished.root) == []
    private = [str(finished.root).encode()]
    private += [path.stem.encode() for path in (finished.root / "data").rglob("*.png")]
    for path in (finished.root / "folders").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [text for text in private if text in content], path


def test_the_log_has_one_line_per_event_in_the_form_that_was_asked_for(finished: Federation) -> None:
    """North and the aggregator were asked for JSON, south for nothing."""
    for work in (finished.aggregator, finished.site("north")):
        records = [json.loads(line) for line in (work / "log.txt").read_text().splitlines()]
        assert {tuple(record) for record in records} == {("time", "level", "logger", "message")}
    text = (finished.site("south") / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d [A-Z]+ +\S", line) for line in text)
    for site in finished.run.sites:  # standard error says the same
        logged = (finished.site(site) / "log.txt").read_text().splitlines()
        assert any("round 1: trained" in line for line in logged)
        assert any("agreed: the hospital's policy allows it" in line for line in logged)
        assert "stopped; the next start goes on from here" in logged[-1]
        assert set(logged) <= set((finished.site(site) / "output.txt").read_text().splitlines())


def test_secrets_are_readable_by_their_owner_only(finished: Federation) -> None:
    owned = [finished.aggregator / "signing.key", *(finished.aggregator / "invites").iterdir()]
    owned += [finished.site(site) / name for site in finished.run.sites for name in ("signing.key", "password")]
    assert [oct(path.stat().st_mode & 0o777) for path in owned] == ["0o600"] * len(owned)


def test_the_work_directory_is_the_archive(finished: Federation) -> None:
    run = finished.aggregator / "runs" / RUN
    for name in ("rounds/0000/aggregate.safetensors", "rounds/0001/aggregate.safetensors", "final/model.safetensors"):
        assert (run / name).stat().st_size > 0
    for site in finished.run.sites:
        archive = finished.aggregator / "sites" / site / "mirror"
        assert files_below(archive).items() <= files_below(finished.folder(site)).items()
        assert (archive / f"runs/{RUN}/rounds/0001/from_site/model.safetensors").exists()
        assert (archive / f"runs/{RUN}/rounds/0002/from_site/metrics.csv").exists()


def test_launching_a_finished_run_again_changes_nothing(finished: Federation) -> None:
    """By the file that it was launched with, and by the one that ``status`` names."""
    before = files_below(finished.root / "folders")
    assert finished.start_aggregator().wait(WAIT_S) == 0
    kept = finished.aggregator / "runs" / RUN / "run.yaml"
    assert (
        finished.start("aggregator.cli", "launch", str(kept), "--accept-any", work=finished.aggregator).wait(WAIT_S)
        == 0
    )
    assert files_below(finished.root / "folders") == before


def test_one_name_is_one_configuration(finished: Federation) -> None:
    changed = finished.root / "CHANGED.yaml"
    changed.write_bytes(yaml.safe_dump(finished.run.model_dump() | {"seed": 99}).encode())
    process = finished.start("aggregator.cli", "launch", str(changed), work=finished.aggregator)
    assert process.wait(WAIT_S) == 2
    assert "was begun with another configuration" in finished.output(finished.aggregator)


def test_status_tells_the_end(finished: Federation) -> None:
    process = finished.start("aggregator.cli", "status", "--json", work=finished.aggregator)
    assert process.wait(WAIT_S) == 0
    text = (finished.aggregator / "output.txt").read_text()
    state = json.loads(text[text.rindex('{\n  "run"') :])
    assert (state["state"], state["round"], state["rounds"]) == ("ended", 1, 1)
    assert {site["phase"] for site in state["sites"].values()} == {"finished"}


def test_the_report_tells_what_the_folders_hold(finished: Federation, tmp_path: Path) -> None:
    """Scores, weights and choice as the messages say them; bytes as the files weigh on the server."""
    said = reported(finished)
    assert (said["run"], said["is_over"], said["aborted"], said["score"]) == (RUN, True, None, "dice_mean")
    assert said["configuration"]["task_options"]["widths"] == [4, 8]
    assert [(each["round"], each["trains"], each["received_aggregate"]) for each in said["rounds"]] == [
        (1, True, 0),
        (2, False, 1),
    ]
    assert_scores_are_those_of_the_tables(finished, said)
    for site in finished.run.sites:
        folder = finished.folder(site) / "runs" / RUN
        assert said["sites"][site]["images"] == {"train": "10", "validation": "5", "test": "5"}
        for each in said["rounds"]:
            of_round, sent = folder / f"rounds/{each['round']:04d}", each["sites"][site]
            verdict = json.loads((of_round / "verdict" / names.VERDICT).read_bytes())
            assert (sent["status"], sent["reason"]) == (verdict["status"], verdict["reason"])
            assert sent["weight"] == (float(verdict["weight"]) if each["trains"] else None)
            assert sent["theta"] is None
            assert sent["bytes"]["down"] == weight(of_round / "to_site") + weight(of_round / "verdict")
            assert sent["bytes"]["up"] == weight(of_round / "from_site")
            assert sent["seconds"] >= 0
        from_site = [*folder.glob("rounds/*/from_site"), folder / "consent"]
        assert said["cost"]["bytes"][site]["up"] == sum(map(weight, from_site))
        assert sum(said["cost"]["bytes"][site].values()) == weight(folder)
    chosen = json.loads((finished.folder("north") / "runs" / RUN / "final" / names.CARD).read_bytes())
    assert (said["chosen"]["aggregate"], said["chosen"]["reason"]) == (chosen["chosen_round"], chosen["reason"])
    for aggregate, mean in said["chosen"]["validation"].items():
        assert said["rounds"][int(aggregate)]["means"]["validation"]["dice_mean"]["alike"] == pytest.approx(mean)
    model = said["cost"]["model"]
    shapes = [
        array.size for array in load_file(finished.folder("north") / f"runs/{RUN}/final/model.safetensors").values()
    ]
    assert model["with_statistics"] == sum(shapes) > model["parameters"] > 0
    assert (model["image"], said["cost"]["why_no_model"]) == ([1, 32, 32], None)

    file = tmp_path / "report.md"
    process = finished.start("aggregator.cli", "report", RUN, "--output", str(file), work=finished.aggregator)
    assert process.wait(WAIT_S) == 0
    text = file.read_text()
    assert f"Outcome: {said['outcome']['text']}." in text and f"Chosen: {said['chosen']['model']} (" in text
    assert "## dice_mean on each site's test images" in text
    assert re.search(r"^\| 1 +\| south +\| accepted +\|", text, re.MULTILINE)
    assert "GFLOPs for one image of 1 × 32 × 32" in text


@pytest.mark.timeout(600)
def test_batch_jobs_end_at_the_same_bytes_and_a_second_run_follows(finished: Federation, tmp_path: Path) -> None:
    """Site daemons as jobs of a few seconds, over and over: each goes on where the last one stopped.

    Then the same folders carry a second run, and every chain of both still holds.
    """
    with Federation(tmp_path) as federation:
        aggregator = federation.start_aggregator()
        jobs = 0
        while not all(federation.has_final(site) for site in federation.run.sites):
            slices = [federation.start_site(site, "--for", f"{4 + jobs}s") for site in federation.run.sites]
            assert [process.wait(WAIT_S) for process in slices] == [0, 0], federation.output(federation.site("north"))
            jobs += 1
            assert jobs < 60
        assert aggregator.wait(WAIT_S) == 0
        assert federation.final_sha256() == finished.final_sha256()

        second = federation.run.model_dump() | {"run": "second-run", "seed": 3}
        write_file(federation.aggregator / "RUN.yaml", yaml.safe_dump(second).encode())
        aggregator = federation.start_aggregator()
        while aggregator.poll() is None:
            slices = [federation.start_site(site, "--once") for site in federation.run.sites]
            assert [process.wait(WAIT_S) for process in slices] == [0, 0]
        assert aggregator.poll() == 0
        for site in federation.run.sites:
            assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
            assert (federation.folder(site) / "runs/second-run/final/manifest.json").exists()


def test_a_site_that_lost_its_disk_but_not_its_key_goes_on_without_forking(tmp_path: Path) -> None:
    """Only the files of a backup come back; what the site had answered it takes from the folder."""
    with Federation(tmp_path) as federation:
        federation.run_to_the_end()
        federation.stop_all()
        home, lost = federation.site("north"), tmp_path / "lost"
        home.rename(lost)
        home.mkdir(mode=0o700)
        for name in ("site.yaml", "signing.key", "password", DIVISION, BUDGET):
            shutil.copy2(lost / name, home / name)
        second = federation.run.model_dump() | {"run": "second-run", "seed": 3}
        write_file(federation.aggregator / "RUN.yaml", yaml.safe_dump(second).encode())
        for site in federation.run.sites:
            federation.start_site(site)
        assert federation.start_aggregator().wait(WAIT_S) == 0, federation.output(home)
        final = home / "mirror/runs/second-run/final/manifest.json"
        federation.wait_until(final.exists, "the final model of the second run")
        federation.stop_all()
        had = files_below(lost / "mirror")
        past = {name: digest for name, digest in had.items() if name.endswith(f"to_site/{names.GLOBAL_MODEL}")}
        assert (had.keys() - past.keys()) <= files_below(home / "mirror").keys()
        assert not past.keys() & files_below(home / "mirror").keys()  # models of past rounds are not fetched again
        assert list(lines(verify(LocalFolder(federation.folder("north"))))) == []
