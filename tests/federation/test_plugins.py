"""A task of somebody's own: written by a command, built as a wheel, installed at both ends, trained in a federation."""

from __future__ import annotations

import configparser
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dropfed
from aggregator.cli import main as aggregator
from aggregator.configuration import AggregatorConfiguration, SiteAccess, allowed_plugins
from aggregator.preparation import as_begun, in_full
from aggregator.setup import initialise
from aggregator.store import RunStore
from shared import check
from shared.audit.cli import main as audit
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.names import METRICS, MessageRef
from shared.exchange.reading import dump_values, parse_yaml
from shared.exchange.records.run import Plugin, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.folder.local import LocalFolder
from shared.learning import plugins
from shared.learning.tasks import task_named
from site_client.apart import ALLOWED_IN, answered
from site_client.configuration import Policy, SiteConfiguration
from site_client.folders import UnitsIn, all_units
from site_client.offer import describe
from site_client.policy import judge
from studies.cli import main as study
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, own_logins
from tests.federation.upgraded import another_version

TEMPLATE = "src/round_shapes/run.round_shapes.yaml"
KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that ``new-task`` writes, after its own ``make test``."""
    home = tmp_path_factory.mktemp("project") / "round_shapes"
    written = CliRunner().invoke(study, ["new-task", "round_shapes", "--output", str(home)])
    assert written.exit_code == 0, written.output
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    environment["PYTEST_DEBUG_TEMPROOT"] = str(home.parent)  # elsewhere it would clear away what other runs have left
    tested = subprocess.run(
        ["make", "test", f"PYTHON={sys.executable}"],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "2 passed" in tested.stdout
    return home


@pytest.fixture
def installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where its wheel is installed, for this process and those that it starts; nothing of it is permitted yet.

    One place for all tests: what stands by goes on with the next one's questions.
    """
    place = project.parent / "installed"
    shutil.copytree(project / "build" / "site", place, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(Path(__file__).parents[2])]))
    monkeypatch.setattr(plugins, "_permitted", set())
    importlib.invalidate_caches()
    yield place
    shutil.rmtree(place, ignore_errors=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "round_shapes"]:
        del sys.modules[name]


def here() -> Plugin:
    """The wheel as offers name it."""
    return plugins.described(plugins.distributions()["dropfed-round-shapes"])


def allowing(plugin: Plugin, **changes: object) -> Policy:
    allowed = {"plugins": {plugin.name: plugin.sha256}, "tasks": ["round_shapes"]}
    return POLICY.model_copy(update=allowed | changes)


def a_site(root: Path, policy: Policy) -> SiteConfiguration:
    return SiteConfiguration(
        federation="retina", site="north", url=root.as_uri(), user="north", aggregator_key=KEY, policy=policy
    )


def asked(project: Path, **changes: object) -> RunConfiguration:
    run = parse_yaml((project / TEMPLATE).read_bytes(), RunConfiguration, "RUN.yaml")
    return run.model_copy(update=changes)


# --- a federation -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_it_trains_in_a_federation_that_an_auditor_can_check(
    project: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site = runpy.run_path(str(installed / "round_shapes" / "synthetic.py"))["write_site"]
    for seed, name in enumerate(("north", "heldout"), 1):
        write_site(tmp_path / "data" / name, 16, seed)
    run = asked(project, run="test-run", sites=["north"], quorum=1, rounds=1)
    with FederationInProcess(tmp_path, run, data=tmp_path / "data", policy=allowing(here())) as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        settings = federation.aggregator / "aggregator.yaml"
        federation.change(settings, plugins={here().name: here().sha256})
        federation.run_to_the_end()
    folder, work = federation.folder("north"), federation.site("north")
    offered = parse_yaml((folder / "runs/test-run/offer/run.yaml").read_bytes(), RunConfiguration, "run.yaml")
    assert offered.plugins == [here()]
    assert set(offered.scores) == {"brier"}
    header, *rows = (folder / MessageRef("update", "test-run", 1).path / METRICS).read_text().splitlines()
    at = header.split(",").index("brier")
    assert all(0 < float(row.split(",")[at]) < 2 for row in rows)
    assert f"needs the plug-in:  dropfed-round-shapes 0.1.0, {here().sha256}" in describe(work, "test-run")
    # Its model goes on; `predict` imports the wheel only if it is told to.
    exported = tmp_path / "exported"
    arguments = ["export", "test-run", "--work", str(federation.aggregator), "--output", str(exported)]
    assert CliRunner().invoke(aggregator, arguments).exit_code == 0
    card = " ".join((exported / "model-card.md").read_text(encoding="utf-8").split())
    assert f"| needs | plug-in {here().in_full} |" in card
    asked_of = ["predict", str(tmp_path / "data" / "heldout" / "round"), "--model", str(exported)]
    asked_of += ["--output", str(tmp_path / "answers")]
    refused = CliRunner().invoke(aggregator, asked_of)
    assert "needs the plug-in dropfed-round-shapes 0.1.0; install its wheel, and pass --with-plugins" in refused.output
    assert "round_shapes" not in sys.modules
    assert CliRunner().invoke(aggregator, [*asked_of, "--with-plugins"]).exit_code == 0
    # An auditor has no plug-in: verify needs none, and replay says which it needs.
    named, replay = f"plug-in dropfed-round-shapes 0.1.0 ({here().sha256})", ["replay", "test-run", str(folder)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [place for place in sys.path if place != str(installed)])
        assert "dropfed-round-shapes" not in plugins.distributions()
        checked = CliRunner().invoke(audit, ["verify", str(folder)])
        assert checked.exit_code == 0, checked.output
        assert not verify(LocalFolder(folder)).findings
        lacking = CliRunner().invoke(audit, replay)
        assert lacking.exit_code == 2
        assert f"{named}; install its wheel" in lacking.stderr
    again = CliRunner().invoke(audit, [*replay, "--with-plugins"])
    assert again.exit_code == 0, again.output
    assert "round_shapes" not in sys.modules


# --- a new run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brings_template", [True, False])
def test_a_new_run_of_it_is_what_the_wheel_suggests_or_what_its_task_takes(
    installed: Path, tmp_path: Path, brings_template: bool
) -> None:
    template = installed / "round_shapes" / "run.round_shapes.yaml"
    if not brings_template:
        template.unlink()
        record = next(installed.glob("*.dist-info/RECORD"))
        kept = [line for line in record.read_text().splitlines(keepends=True) if template.name not in line]
        record.write_text("".join(kept))
    work = tmp_path / "aggregator"
    initialise(work, "retina", {site: f"http://127.0.0.1/{site}/" for site in ("north", "east", "south")}, "aggregator")
    settings = work / "aggregator.yaml"
    before = parse_yaml(settings.read_bytes(), AggregatorConfiguration, settings.name).model_dump()

    def new_run() -> Result:
        arguments = ["new-run", "--work", str(work), "--task", "round_shapes", "--rounds", "5", "--defaults"]
        return CliRunner().invoke(aggregator, arguments)

    settings.write_bytes(dump_values(before | {"heldout": {"round_shapes": "heldout"}}))
    refused = new_run()
    assert refused.exit_code == 2 and "aggregator.yaml, plugins, does not name it" in refused.output
    assert "round_shapes" not in sys.modules
    allowed = {"heldout": {"round_shapes": "heldout"}, "plugins": {here().name: here().sha256}}
    settings.write_bytes(dump_values(before | allowed))
    written = new_run()
    assert written.exit_code == 0, written.output
    assert "round_shapes" not in sys.modules  # another process has imported it
    text = next(work.glob("round-*.yaml")).read_text()
    run = parse_yaml(text.encode(), RunConfiguration, "RUN.yaml")
    assert (run.task, run.sites, run.rounds) == ("round_shapes", ["east", "north", "south"], 5)
    assert run.task_options["optimizer"] == "adam" if brings_template else run.task_options["encoder"] == "small"
    assert ("`dropfed-aggregator new-run --task round_shapes` writes it" in text) == brings_template
    assert "# answers needed to close a round at its deadline" in text
    plugins.permit([here()], {here().name: here().sha256}, "a test")
    full = in_full(run)
    assert full.task_options["labels"] == ["round", "square"]


# --- what agrees, and what does not -------------------------------------------------------------------------------


def test_nothing_of_a_wheel_is_imported_before_policy_and_files_agree(
    project: Path, installed: Path, tmp_path: Path
) -> None:
    plugin = here()
    run = asked(project, plugins=[plugin])
    assert judge(allowing(plugin), run, decision=True).answer == "yes"
    for policy, reason in (
        (allowing(plugin, plugins={}), f"{ALLOWED_IN} does not name it; if you trust it, add `dropfed-round-shapes: "),
        (allowing(plugin, plugins={plugin.name: "0" * 64}), f"{ALLOWED_IN} allows the files 0000000000000000…"),
        (allowing(plugin, tasks=["octa_segmentation"]), "this hospital does not take part in task round_shapes"),
    ):
        judgement = judge(policy, run, decision=True)
        assert judgement.answer == "no"
        assert reason in judgement.reason
    with pytest.raises(ConfigurationError, match="task: round_shapes is of the plug-in dropfed-round-shapes"):
        task_named("round_shapes")
    (installed / "round_shapes" / "more.py").write_text("evil = True\n")
    judgement = judge(allowing(plugin), run, decision=True)
    assert "the files that are installed here, of 0.1.0, differ from the run's" in judgement.reason
    site, question = a_site(tmp_path, allowing(plugin)), UnitsIn(task="round_shapes", root=tmp_path, is_labelled=True)
    with pytest.raises(ConfigurationError, match="differ from the run's"):
        answered(question, site, [plugin])
    shutil.rmtree(installed)
    importlib.invalidate_caches()
    assert "is not installed here; install its wheel" in judge(allowing(plugin), run, decision=True).reason
    assert "round_shapes" not in sys.modules


def test_no_command_may_import_a_wheel_in_its_own_process() -> None:
    """Who may: a child process, torchrun's, whoever opens a bundle in MONAI, and a researcher on their own machine."""
    root, asks = Path(__file__).parents[2], re.compile(r"plugins import [^\n]*\bpermit|\bplugins\.permit\w*\(")
    rooms = ("aggregator", "dropfed", "shared", "site_client", "studies")
    asking = {path for room in rooms for path in (root / room).rglob("*.py") if asks.search(path.read_text())}
    assert {path.relative_to(root).as_posix() for path in asking} == {
        *("shared/learning/plugged.py", "site_client/worker.py", "shared/learning/kept_model.py"),
        *("dropfed/models.py", "dropfed/simulation.py", "studies/cell.py", "studies/play.py"),
    }


def test_a_private_run_uses_no_plugin(project: Path, installed: Path) -> None:
    private = RunConfiguration.model_validate(
        asked(project, plugins=[here()]).model_dump()
        | {"privacy": {"max_grad_norm": 1.0, "delta": 0.001, "target_epsilon": 8.0}}
    )
    assert "a private run cannot use a plug-in" in judge(allowing(here()), private, decision=True).reason


def test_compiled_code_and_the_installers_own_files_do_not_count(installed: Path) -> None:
    before = here()
    (installed / "round_shapes" / "__pycache__").mkdir()
    (installed / "round_shapes" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    next(installed.glob("*.dist-info/RECORD")).open("a").write("round_shapes/../../../bin/script,,\n")
    about = next(installed.glob("*.dist-info"))
    for name in ("INSTALLER", "uv_cache.json", "uv_build.json"):
        (about / name).write_text("another")
    with (about / "RECORD").open("a") as record:
        record.write(f"{about.name}/uv_cache.json,,\n")
    assert here() == before
    (installed / "round_shapes" / "link.py").symlink_to(__file__)
    with pytest.raises(ConfigurationError, match=r"link\.py is a link, which has no hash"):
        here()


@pytest.mark.parametrize("path", ["shared/more.py", "dropfed.py", "begins.pth", "sitecustomize.py"])
def test_what_python_imports_unasked_is_in_no_wheel(installed: Path, path: str) -> None:
    (installed / path).parent.mkdir(exist_ok=True)
    (installed / path).write_text("")
    with next(installed.glob("*.dist-info/RECORD")).open("a") as record:
        record.write(f"{path},,\n")
    with pytest.raises(ConfigurationError, match=f"plug-in dropfed-round-shapes: {re.escape(path)} lies where Python"):
        here()


def test_every_package_of_dropfed_is_closed_to_wheels() -> None:
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).parents[2] / "setup.cfg")
    packages = settings["options.packages.find"]["include"].split()
    assert {name.rstrip("*") for name in packages} < plugins._NOT_ITS_OWN


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "is a Python module already") for name in ("shared", "dropfed", "numpy", "statistics")),
        ("path", "would call its class Path, as something else in the project is called"),
        ("my_scoring", "would call its class MyScoring"),
        ("class", "cannot be a Python package's name"),
        ("dr_staging", "is a task of dropfed already"),
    ],
)
def test_a_name_that_is_taken_is_refused(name: str, said: str, tmp_path: Path) -> None:
    written = CliRunner().invoke(study, ["new-task", name, "--output", str(tmp_path / "new")])
    assert (written.exit_code, said in written.output) == (2, True)
    assert not (tmp_path / "new").exists()


# --- updates while a run goes on ---------------------------------------------------------------------------------


def test_a_run_goes_on_after_an_update_of_dropfed_and_not_after_one_of_the_wheel(
    project: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, written, store = here(), asked(project, run="octa-1"), RunStore(tmp_path, "octa-1")
    north = SiteAccess(url="https://127.0.0.1/north/", user="aggregator", password_file="password")
    settings = AggregatorConfiguration(
        federation="retina", sites={"north": north}, plugins={before.name: before.sha256}
    )
    plugins.permit([before], settings.plugins, "a test")
    store.begin(begun := in_full(written), Sharing(tensors={}, start={}, personal=[]))
    monkeypatch.syspath_prepend(another_version(tmp_path, "0.2.0"))
    assert (before.requires, here().requires) == ({"dropfed": dropfed.__version__}, {"dropfed": "0.2.0"})
    assert as_begun(store, written) == as_begun(store, begun) == begun != in_full(written)
    assert allowed_plugins(settings, written) == allowed_plugins(settings, begun) == [here()]
    assert judge(allowing(before), begun, decision=True).answer == "yes"

    about = next(installed.glob("dropfed_round_shapes-*.dist-info"))
    (installed / "round_shapes" / "more.py").write_text("")
    metadata = (about / "METADATA").read_text().replace("Version: 0.1.0", "Version: 0.2.0")
    (about / "METADATA").write_text(metadata)
    importlib.invalidate_caches()
    for policy, said in (
        (allowing(before), "the files that are installed here, of 0.2.0, differ from the run's"),
        (allowing(here()), f"and the run asks for {before.sha256[:16]}… (0.2.0 is installed here); install that"),
    ):
        reason = judge(policy, begun, decision=True).reason
        assert reason.startswith("plug-in dropfed-round-shapes 0.1.0: ") and said in reason
    (told,) = check.look_at_plugins({before.name: before.sha256}, "site.yaml, policy: plugins,")
    assert told.grade == "problem"
    assert told.text.startswith(f"plug-in {before.name} 0.2.0, {here().sha256}: is installed")
    assert f"site.yaml, policy: plugins, allows the files {before.sha256[:16]}…; if you trust" in told.text
    (allowed,) = check.look_at_plugins({before.name: here().sha256}, "site.yaml, policy: plugins,")
    assert allowed.text.startswith(f"plug-in {before.name} 0.2.0, {here().sha256} (beside dropfed 0.2.0): allowed; ")
    with pytest.raises(ConfigurationError, match=r"files that are installed here, of 0[.]2[.]0, differ from the run's"):
        allowed_plugins(settings, begun)


def test_a_folder_of_a_wheel_that_is_not_allowed_declines_no_run_of_another_task(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "shapes").mkdir()
    site = a_site(tmp_path, POLICY).model_copy(update={"data": {"round_shapes": "shapes"}})
    with pytest.raises(ActionRequiredError) as found:  # no ConfigurationError, for which an offer is declined
        all_units(tmp_path, site)
    assert str(found.value) == (
        f"site.yaml: data: round_shapes is of the plug-in dropfed-round-shapes 0.1.0, {here().sha256}, which `policy: "
        "plugins:` does not allow; write that hash down there if you trust what is installed, or take round_shapes out "
        "of `data`"
    )
    assert "round_shapes" not in sys.modules


# --- plug-ins that misbehave --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ("raise RuntimeError('of its own')", "plug-in dropfed-round-shapes 0.1.0: raised RuntimeError: of its own"),
        ("import time; time.sleep(600)", r"took more than the 0\.1 minutes that site\.yaml allows"),
        ("import os; os._exit(7)", r"its process ended \(exit status 7\)"),
        ("return ['not', 'units']", "plug-in dropfed-round-shapes 0.1.0: "),
        ("import os; return [] if 'DROPFED_PASSWORD' not in os.environ else 1 / 0", None),
    ],
    ids=["raises", "hangs", "dies", "answers nonsense", "sees no password"],
)
def test_a_plugin_that_misbehaves_is_named_and_nothing_else_happens(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: str, said: str | None
) -> None:
    monkeypatch.setenv("DROPFED_PASSWORD", "not for plug-ins")
    module = installed / "round_shapes" / "__init__.py"
    module.write_text(module.read_text() + f"\n    def units(self, root):\n        {units}\n")
    plugin = here()
    site = a_site(tmp_path, allowing(plugin, plugin_minutes=0.1 if "sleep" in units else 10.0))
    question = UnitsIn(task="round_shapes", root=tmp_path, is_labelled=True)
    if said is None:
        assert answered(question, site, [plugin]) == []
        return
    with pytest.raises(ActionRequiredError, match=said):
        answered(question, site, [plugin])
