"""The files below deploy/ that other programs read: well-formed, without secrets, and naming only what is there."""

from __future__ import annotations

import plistlib
import re
import shlex
import subprocess
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from defusedxml.ElementTree import fromstring

import aggregator.cli
import site_client.cli
from deploy.local.bootstrap import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
DOCKERFILE = DEPLOY / "container" / "Dockerfile"
PINNED = r"[a-z0-9./-]+:[0-9]+\.[0-9]+[a-z0-9.-]*"
INSTRUCTIONS = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "STOPSIGNAL", "CMD"}
SERVICE_KEYS = {
    *("image", "build", "restart", "command", "ports", "volumes", "networks", "cap_drop", "cap_add", "security_opt"),
    *("depends_on", "environment", "env_file", "healthcheck", "secrets", "profiles", "read_only", "tmpfs"),
    *("init", "stop_grace_period"),
}
COMMANDS = {"dropfed-site": site_client.cli.main, "dropfed-aggregator": aggregator.cli.main}


def require_command(words: list[str]) -> None:
    """Demand that a command line is one of ours, by its own help: each option it has, the subcommand knows."""
    program, subcommand, *rest = words
    shown = CliRunner().invoke(COMMANDS[Path(PureWindowsPath(program).name).stem], [subcommand, "--help"])
    assert shown.exit_code == 0, shown.output
    assert all(option in shown.output for option in rest if option.startswith("--"))


# --- compose -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_bytes())
    return found


def test_the_hub_has_known_keys_alone(hub: dict[str, Any]) -> None:
    assert set(hub) == {"name", "services", "secrets", "volumes", "networks"}
    assert set(hub["services"]) == {"proxy", "owncloud", "database", "cache", "aggregator"}
    for name, service in hub["services"].items():
        assert service.keys() <= SERVICE_KEYS, name


def test_every_image_is_pinned(hub: dict[str, Any]) -> None:
    for name, service in hub["services"].items():
        assert re.fullmatch(PINNED, service["image"]), name
    version = "".join(re.findall(r"^(?:version|tag_build) = (.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE))
    assert hub["services"]["aggregator"]["image"] == f"dropfed:{version}"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_bytes())["version"] == version


def test_everything_a_service_refers_to_is_there(hub: dict[str, Any]) -> None:
    used: dict[str, set[str]] = {"volumes": set(), "secrets": set(), "networks": set()}
    for service in hub["services"].values():
        for volume in service.get("volumes", []):
            if isinstance(volume, str):
                used["volumes"].add(volume.split(":")[0])
        used["secrets"] |= set(service.get("secrets", []))
        used["networks"] |= set(service["networks"])
        assert set(service.get("depends_on", [])) <= hub["services"].keys()
    assert used == {kind: set(hub[kind]) for kind in used}
    build = hub["services"]["aggregator"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    assert context / build["dockerfile"] == DOCKERFILE


def test_what_the_readme_has_people_make_is_what_the_hub_reads(hub: dict[str, Any]) -> None:
    readme = (COMPOSE.parent / "README.md").read_text()
    ignored = (COMPOSE.parent / ".gitignore").read_text().splitlines()
    made = [*hub["services"]["owncloud"]["env_file"], *(secret["file"] for secret in hub["secrets"].values())]
    made += [volume["source"].removeprefix("./") for volume in hub["services"]["aggregator"]["volumes"]]
    for path in made:
        assert path in readme, path
        assert any(f"{path}/".startswith(folder) for folder in ignored), f"{path} could be committed"
    assert set(re.findall(r"\$\{([A-Z_]+)", COMPOSE.read_text())) == {"DOMAIN"}
    assert "DOMAIN=" in readme


def test_the_readme_makes_all_that_the_launch_needs_before_it(hub: dict[str, Any]) -> None:
    readme, service = (COMPOSE.parent / "README.md").read_text(), hub["services"]["aggregator"]
    (heldout,) = (volume["target"] for volume in service["volumes"] if volume["source"] == "./heldout")
    steps = [
        "dropfed-aggregator init ",
        "cat > work/passwords/",
        f"`heldout: {{octa_segmentation: {heldout}}}`",
        f"\n    chown -R {dict(instructions(DOCKERFILE.read_text()))['USER']} heldout work\n",
        f"dropfed-aggregator new-run --output {service['command'][-1]}\n",
        "docker compose --profile run up -d",
    ]
    places = [readme.find(step) for step in steps]
    assert -1 not in places and places == sorted(places)


def test_the_hub_has_no_secret(hub: dict[str, Any]) -> None:
    for service in hub["services"].values():
        for name, value in service.get("environment", {}).items():
            secret = "PASSWORD" in name and name != "MARIADB_RANDOM_ROOT_PASSWORD"
            assert not secret or (name.endswith("_FILE") and value.startswith("/run/secrets/")), name


def test_only_the_proxy_can_be_reached_from_outside(hub: dict[str, Any]) -> None:
    services = hub["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert [name for name, service in services.items() if "outside" in service["networks"]] == ["proxy"]
    assert hub["networks"]["inside"] == {"internal": True}


def test_each_way_to_run_gives_daemons_the_same_time_to_end(hub: dict[str, Any]) -> None:
    service = hub["services"]["aggregator"]
    unit = (DEPLOY / "systemd" / "dropfed-site.service").read_text()
    assert (service["init"], service["stop_grace_period"]) == (True, "5m")
    assert "TimeoutStopSec=5min\n" in unit
    assert "--init --stop-timeout 300 " in (DEPLOY / "container" / "README.md").read_text()


def test_the_hub_runs_commands_of_ours(hub: dict[str, Any]) -> None:
    require_command(hub["services"]["aggregator"]["command"])


# --- container ---------------------------------------------------------------------------------------------


def instructions(text: str) -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with what follows them on continued lines."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def built() -> list[tuple[str, str]]:
    return instructions(DOCKERFILE.read_text())


def test_the_image_is_built_by_known_instructions(built: list[tuple[str, str]]) -> None:
    assert {name for name, _ in built} == INSTRUCTIONS
    for name, value in built:
        if name == "FROM":
            assert re.fullmatch(rf"{PINNED}( AS wheels)?", value), value


def test_the_container_does_not_run_as_root(built: list[tuple[str, str]]) -> None:
    last_stage = built[max(number for number, (name, _) in enumerate(built) if name == "FROM") :]
    users = [value for name, value in last_stage if name == "USER"]
    assert len(users) == 1
    assert int(users[0]) > 0
    assert [name for name, _ in last_stage].index("USER") > max(
        number for number, (name, _) in enumerate(last_stage) if name == "RUN"
    )
    assert f"--uid {users[0]}" in DOCKERFILE.read_text()


def test_the_containers_user_can_read_the_invite(built: list[tuple[str, str]]) -> None:
    readme = (DOCKERFILE.parent / "README.md").read_text()
    assert f"install -o {dict(built)['USER']} -m 600 invite.json /srv/dropfed/\n" in readme
    assert "-v /srv/dropfed:/work " in readme and "dropfed-site join /work/invite.json " in readme


def test_the_container_runs_a_command_of_ours(built: list[tuple[str, str]]) -> None:
    require_command(yaml.safe_load(dict(built)["CMD"]))


def test_what_the_image_is_built_from_is_let_in() -> None:
    """Everything that pip needs, and nothing that lies about: images, keys, work directories."""
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    # The hub's folder holds its secrets, its archive and held-out images once it is set up as its README says.
    assert rules.index("deploy/compose") > rules.index("!deploy")
    assert all((ROOT / path).exists() for path in let_in)
    rooms = {"aggregator", "deploy", "dropfed", "shared", "site_client", "studies"}
    assert rooms | {"setup.cfg", "pyproject.toml", "requirements.lock"} <= {*let_in}


def test_the_shell_understands_what_is_run(built: list[tuple[str, str]]) -> None:
    for name, value in built:
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", value], check=True)


# --- Windows and macOS -------------------------------------------------------------------------------------

TASK = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


def test_the_scheduled_task() -> None:
    content = (DEPLOY / "windows" / "dropfed-site.xml").read_bytes()
    assert content.isascii() and b"encoding" not in content, "schtasks is reported to refuse a declared UTF-8"
    task = fromstring(content)
    assert task.tag == f"{TASK}Task"
    order = ["RegistrationInfo", "Triggers", "Principals", "Settings", "Actions"]
    assert [child.tag.removeprefix(TASK) for child in task] == order, "the schema's order"
    (execute,) = task.iter(f"{TASK}Exec")
    program, arguments, folder = (
        execute.findtext(f"{TASK}{name}") for name in ("Command", "Arguments", "WorkingDirectory")
    )
    require_command([program, *arguments.split()])
    assert arguments.endswith(f"--work {folder}")
    assert PureWindowsPath(program).is_absolute()
    assert PureWindowsPath(folder).is_absolute()
    (principal,) = task.iter(f"{TASK}Principal")
    assert principal.findtext(f"{TASK}RunLevel") == "LeastPrivilege"
    (settings,) = task.iter(f"{TASK}Settings")
    assert settings.findtext(f"{TASK}ExecutionTimeLimit") == "PT0S", "otherwise it is ended after three days"
    (again,) = task.iter(f"{TASK}TimeTrigger")
    assert again.findtext(f"{TASK}Repetition/{TASK}Interval") == "PT5M"
    assert again.find(f"{TASK}Repetition/{TASK}Duration") is None, "otherwise it is started again for that long only"
    assert again.findtext(f"{TASK}StartBoundary") == "2020-01-01T00:00:00"
    assert settings.findtext(f"{TASK}MultipleInstancesPolicy") == "IgnoreNew", "a daemon at work is left alone"
    readme = (DEPLOY / "windows" / "README.md").read_text()
    assert folder in readme
    assert program in readme
    assert principal.findtext(f"{TASK}UserId") in readme
    assert readme.index("/DISABLE") < readme.index("schtasks /End"), "otherwise the task starts it again"
    assert "for all users" in readme and "HTTPS_PROXY" in readme
    assert "Python for all users" in (DEPLOY / "bundle" / "README.txt").read_text()


def test_the_launch_daemon() -> None:
    path = DEPLOY / "macos" / "org.dropfed.site.plist"
    settings = plistlib.loads(path.read_bytes())
    assert settings["Label"] == path.stem
    require_command(settings["ProgramArguments"])
    assert settings["ProgramArguments"][-1] == settings["WorkingDirectory"]
    assert settings["KeepAlive"] == {"SuccessfulExit": False}
    assert settings["Umask"] == 0o077
    readme = (DEPLOY / "macos" / "README.md").read_text()
    for word in (settings["UserName"], settings["WorkingDirectory"], path.name):
        assert word in readme


@pytest.mark.parametrize("folder", ["compose", "container", "macos", "systemd", "windows"])
def test_every_command_of_ours_in_a_readme_exists(folder: str) -> None:
    text = (DEPLOY / folder / "README.md").read_text()
    found = re.findall(r"(?:^|[\s`/\\])(dropfed-(?:site|aggregator)(?:\.exe)? [a-z].*?)(?:`|$)", text, re.MULTILINE)
    assert found or folder == "compose"
    for line in found:
        require_command(shlex.split(line.rstrip("\\").replace("\\", "/")))


# --- Slurm -------------------------------------------------------------------------------------------------


def test_slurm_is_given_commands_that_are_ours() -> None:
    crontab, job = ((DEPLOY / "slurm" / name).read_text() for name in ("move.cron", "train.sbatch"))
    found = [shlex.split(line) for line in re.findall(r"\S*/dropfed-site .*", crontab + job)]
    assert [words[1] for words in found] == ["move", "run"]
    for words in found:
        require_command(words)
    assert subprocess.run(["sh", "-n", DEPLOY / "slurm" / "train.sbatch"], check=False).returncode == 0
    (job_name,) = re.findall(r"--name=(\S+)", crontab)
    assert f"#SBATCH --job-name={job_name}\n" in job
