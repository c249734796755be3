"""What can be tested of Windows without one: names, paths, and a daemon without what only POSIX has."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.exchange.names import MessageRef, is_name, ref_at, state_file
from shared.exchange.reading import check_record, dump_yaml, parse_yaml
from shared.folder import durable
from shared.learning.apart import PERCENT, Bounds, confine, tell_percent
from site_client.configuration import SiteConfiguration
from tests import SOME_KEY
from tests.federation.running import Federation, run_configuration

DEVICES = ["con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))]
LONGEST_PATH = 259  # characters that Windows takes without further ado
LONGEST_WORK = 70  # what docs/service.md leaves for the work directory


@pytest.mark.parametrize("name", [*DEVICES, "nul.txt", "com1.v2", "con.", "run.", "run..", "a."])
def test_no_name_is_one_that_windows_takes_otherwise(name: str) -> None:
    assert not is_name(name)
    assert ref_at(f"runs/{name}/offer") is None


@pytest.mark.parametrize("name", ["a", "9", "console", "null", "com10", "run.con", "aux-2", "north_", "a" * 64, "v1.2"])
def test_other_names_are_as_good_as_before(name: str) -> None:
    assert is_name(name)


@given(st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789._-"), min_size=1, max_size=66))
def test_a_name_is_one_part_of_a_path_of_windows(name: str) -> None:
    if is_name(name):
        path = PureWindowsPath("C:\\work") / "runs" / name
        assert path.name == name
        assert path.parent == PureWindowsPath("C:\\work\\runs")
        assert not path.is_reserved()
        assert name == name.rstrip(". ")


def test_the_longest_path_below_a_work_directory_fits() -> None:
    ref = MessageRef("update", "r" * 64, 9999)
    arriving = f".{state_file('g' * 32)}.{'0' * 16}.arriving"
    longest = PureWindowsPath("W" * LONGEST_WORK) / "quarantine" / ref.path / arriving
    assert len(str(longest)) <= LONGEST_PATH


def test_paths_of_windows_in_the_settings() -> None:
    data = {"dr_staging": "D:\\Bilder\\Augenhintergründe", "octa_segmentation": "\\\\server\\share\\octa"}
    values = {
        "federation": "retina",
        "site": "north",
        "url": "https://cloud.example.org/dav/",
        "user": "north",
        "aggregator_key": SOME_KEY,
        "data": data,
    }
    content = dump_yaml(check_record(values, SiteConfiguration, "test"))
    assert parse_yaml(content, SiteConfiguration, "site.yaml").data == data
    work = PureWindowsPath("C:\\ProgramData\\dropfed")
    assert [str(work / folder) for folder in data.values()] == list(data.values()), "an absolute path stays one"


@pytest.mark.parametrize("platform", ["win32", "linux"])
def test_a_file_that_somebody_looks_into(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Windows refuses to replace a file that is open, it is tried again; elsewhere a refusal is one."""
    monkeypatch.setattr(sys, "platform", platform)
    replace, refusals = Path.replace, [PermissionError(errno.EACCES, "in use")] * 3

    def refusing(self: Path, target: Path) -> Path:
        if refusals:
            raise refusals.pop()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refusing)
    path = tmp_path / "status.json"
    if platform == "win32":
        durable.write_file(path, b"new")
        assert path.read_bytes() == b"new"
    else:
        with pytest.raises(PermissionError):
            durable.write_file(path, b"new")
    assert list(tmp_path.iterdir()) == ([path] if platform == "win32" else [])


def test_how_far_the_work_is_may_stay_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon looks into that file while the work goes on."""
    tell_percent(tmp_path, 1)

    def refusing(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "in use")

    with monkeypatch.context() as looked_into:
        looked_into.setattr(Path, "replace", refusing)
        tell_percent(tmp_path, 2)
    assert (tmp_path / PERCENT).read_text() == "1"
    tell_percent(tmp_path, 3)
    assert (tmp_path / PERCENT).read_text() == "3"


def test_a_refusal_that_lasts_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(durable, "IN_USE_S", 0.1)

    def refusing(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr(Path, "unlink", refusing)
    with pytest.raises(PermissionError):
        durable.remove_file(tmp_path / "transfer.json")


def test_what_a_code_page_lacks_is_escaped(tmp_path: Path) -> None:
    program = (
        "import click; from shared.commands import Program\n"
        "@click.group(cls=Program, extra='site')\ndef main(): pass\n"
        "@main.command()\ndef say(): click.echo('θ is 0.5')\n"
        "main()"
    )
    environment = {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "PATH": ""}
    command = [sys.executable, "-c", program, "say"]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, b"\\u03b8 is 0.5")


def test_bounds_that_windows_lacks_are_among_the_known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    shown = {"said_in": "", "allowed": {}, "allowed_in": "", "minutes_key": "", "if_full": ""}
    confine(Bounds(**shown, minutes=1.0, memory_gb=1.0, threads=1))  # type: ignore[arg-type]
    limits = (Path(__file__).parent.parent / "docs" / "service.md").read_text().partition("Known limits:")[2]
    assert "Nothing bounds the memory that a plug-in's process takes: `plugin_memory_gb` and " in limits


def test_a_whole_run_without_what_only_posix_has(tmp_path: Path) -> None:
    with Federation(tmp_path, run_configuration(sites=["north"], quorum=1)) as federation:
        federation.start_aggregator()
        federation.runner = ("tests.federation.windows",)
        site = federation.start_site("north")
        federation.wait_until(lambda: federation.has_final("north") or site.poll() is not None, "the final model")
        said = federation.output(federation.site("north"))
        assert site.poll() is None, said
        assert "Traceback" not in said
