"""Sites that train by a program of their own, shut in: real federations, and programs that do what they must not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from safetensors.numpy import save_file

from aggregator.model_card import export
from aggregator.preparation import prepare
from aggregator.run_view import view_run
from aggregator.store import RunStore
from shared.audit import report
from shared.audit.archive import open_archive
from shared.audit.sites import by_site, read_folders
from shared.audit.verify import lines, verified, verify
from shared.errors import ActionRequiredError, ConfigurationError, DataError, TransientError
from shared.exchange.names import METRICS, SITE_MODEL, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.tables import MetricsRow, read_metrics
from shared.exchange.weights import TensorFile, check_tensors
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from shared.learning.compute import Computing
from shared.learning.data.plain_files import plain_files
from shared.learning.data.sets import Members
from shared.learning.data.splits import SplitPlan
from shared.learning.kept_model import open_model
from shared.learning.methods import open_method
from shared.learning.model_files import save_tensors
from shared.learning.run_checks import check_together
from shared.learning.schedules import round_configuration
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import members_anew, open_anew
from site_client import outside, programs, sandbox
from site_client.configuration import Policy, Program, SiteConfiguration
from site_client.heartbeat import PUBLIC_TROUBLE
from site_client.offer import describe
from site_client.outside import LIST, LOG, RECEIVED, TRAINED, Told, trained_outside
from site_client.policy import judge
from site_client.programs import fingerprint
from site_client.train import Files, Trainer
from tests.audit.replaying import not_same, replayed
from tests.federation.hospital import Hospital
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, RUN, TASK, WAIT_S, Federation, own_logins, run_configuration, write_data

pytestmark = pytest.mark.skipif(sandbox.obstacle() is not None, reason=f"no sandbox: {sandbox.obstacle()}")

KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
EXAMPLE = Path(__file__).parents[2] / "configs" / "external_trainer"
CLASSES = ("normal", "glaucoma", "cataract")
SAME = "cp /round/received.safetensors /output/trained.safetensors\n"
LINES = ("epoch,split,loss,seconds,secret", "0,validation,0.5,1,7", "1,train,0.25,3,7", "1,validation,0.123456,2,7")
TABLE = "".join(f"echo {line} >> /output/metrics.csv\n" for line in LINES)
OF_KNOWN = "".join(f"echo {line} >> /output/metrics.csv\n" for line in LINES if not line.startswith("0"))
"""Where the network is known, the received model is measured by dropfed."""


def installed(home: Path, script: str, *command: str, **limits: float) -> Program:
    """A program in a directory of its own, allowed as it is."""
    home.mkdir(parents=True)
    (home / "train.sh").write_text(f"set -e\n{script}")
    program = Program(name="own", directory=str(home), command=[*(command or ("/bin/sh", "train.sh"))], **limits)
    return program.model_copy(update={"sha256": fingerprint(program)})


def allowing(program: Program) -> Policy:
    return POLICY.model_copy(update={"external_trainers": [program]})


@pytest.mark.long
def test_one_site_trains_by_a_program_and_the_other_by_pytorch(tmp_path: Path) -> None:
    run = run_configuration(
        trainer={"name": "own", "sites": ["north"]}, scores={"seconds": {"lowest": 0.0}}, tolerance=0.01
    )
    handed = "test $(ls /round/masks | wc -l) = 15 && grep -x split,label,images,masks /round/files.csv\n"
    program = installed(tmp_path / "program", handed + SAME + OF_KNOWN)
    with Federation(tmp_path, run) as federation:
        federation.change(federation.site("north") / "site.yaml", policy=allowing(program).model_dump())
        federation.run_to_the_end()
        federation.stop_all()
    update = federation.folder("north") / MessageRef("update", RUN, 1).path
    received = federation.folder("north") / MessageRef("round", RUN, 1).path / "global.safetensors"
    assert (update / SITE_MODEL).read_bytes() == received.read_bytes()
    rows = [row.split(",") for row in (update / METRICS).read_text().splitlines()]
    assert "secret" not in rows[0]
    at = rows[0].index("seconds")
    assert [(row[1:6], row[at]) for row in rows[3:]] == [
        (["1", "train", "10", "0.1", "0.25"], "3.0"),
        (["1", "validation", "5", "0.1", "0.1235"], "2.0"),
    ]
    assert all(row[at] == "" and row[6] for row in rows[1:3])  # what came is measured by dropfed, as at the other site
    for site in run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
    assert not_same(replayed(tmp_path / "folders", RUN, heldout=tmp_path / "data" / "heldout")) == []


# --- a network that dropfed does not know -------------------------------------------------------------------------


def draw(folder: Path, images: int, seed: int) -> None:
    """A site of grey images, 8 by 8, whose brightest corner says the class."""
    drawn = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    lines = ["id,label\n"]
    for number in range(images):
        pixels = drawn.integers(0, 120, (8, 8), dtype=np.uint8)
        label = number % 3
        pixels[(label // 2) * 5 : (label // 2) * 5 + 3, (label % 2) * 5 : (label % 2) * 5 + 3] += 90
        (folder / "images" / f"Meier-{number}.pgm").write_bytes(b"P5\n8 8\n255\n" + pixels.tobytes())
        lines.append(f"Meier-{number},{CLASSES[label]}\n")
    (folder / "labels.csv").write_text("".join(lines))


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of the guide, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    home = tmp_path_factory.mktemp("softmax")
    compiler = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-std=c99", "-o", str(home / "train")]
    subprocess.run([*compiler, str(EXAMPLE / "softmax.c"), "-lm"], check=True)
    program = Program(name="softmax", directory=str(home), command=["./train"])
    return program.model_copy(update={"sha256": fingerprint(program)})


def test_sites_train_an_unknown_network_in_c(softmax: Program, tmp_path: Path) -> None:
    for seed, site in enumerate(("north", "south")):
        draw(tmp_path / "data" / site, 60, seed)
    zeros = tmp_path / "aggregator" / "weights" / "zeros" / "model.safetensors"
    example = yaml.safe_load((EXAMPLE / "RUN.yaml").read_bytes())
    run = RunConfiguration.model_validate(example | {"run": RUN, "rounds": 3})
    with FederationInProcess(tmp_path, run, data=tmp_path / "data") as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        zeros.parent.mkdir(parents=True)
        subprocess.run([f"{softmax.directory}/train", "zeros", "64", "3", str(zeros)], check=True)
        federation.change(federation.aggregator / "RUN.yaml", start={"name": "zeros", "sha256": hash_file(zeros)[1]})
        tasks = [*POLICY.tasks, "external"]
        for site in run.sites:
            policy = allowing(softmax).model_copy(update={"tasks": tasks, "minimum_count": 5})
            federation.change(federation.site(site) / "site.yaml", policy=policy.model_dump())
        federation.run_to_the_end()
    view = view_run(federation.aggregator, RunStore(federation.aggregator, RUN))
    assert view.outcome.text.startswith("improved: mean validation score 0.333 before training, 1.000 after")
    told = [
        finding.text for finding in prepare(federation.aggregator, federation.aggregator / "RUN.yaml").begun.remarks
    ]
    assert [text for text in told if "trainer: north, south by the program softmax that is installed there" in text]
    shown = describe(federation.site("north"), RUN)
    assert f"trains by:          the program softmax: {programs.told(softmax)}" in shown
    store, made = RunStore(federation.aggregator, RUN), tmp_path / "export"
    with pytest.raises(ConfigurationError, match="dropfed does not know this run's network"):
        export(federation.aggregator, store, made, onnx=True)
    export(federation.aggregator, store, made)
    assert "north, south, each by its own program called softmax" in (made / "model-card.md").read_text()
    for kept in (made, federation.site("north") / "final"):
        with pytest.raises(ConfigurationError, match="dropfed does not know this network"):
            open_model(kept)
    log = (federation.site("north") / "log.txt").read_text()
    assert f"ready for use: by a program of your own, in {federation.site('north') / 'final'}" in log
    folders = by_site(read_folders(open_archive([str(tmp_path / "folders")])))
    audits = {site: verified(each) for site, each in folders.items()}
    page = report.page(report.report(folders, audits, is_key_compared=True))
    assert "north, south, each by a program of its own that its policy calls softmax" in page
    for site in run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
    assert not_same(replayed(tmp_path / "folders", RUN)) == []


# --- what it is handed, and what it sees --------------------------------------------------------------------------

LOOK = """
find / -xdev -name 'Meier*' -o -name '*.key' -o -name site.yaml -o -name password > /tmp/seen 2>/dev/null || true
for path in /etc/passwd /etc/shadow /home /root /var /run /work "$1"; do
    if test -e "$path"; then echo "$path" >> /tmp/seen; fi
done
env | grep -i -e dropfed -e secret >> /tmp/seen || true
ls /proc | grep -c '^[0-9]' > /tmp/processes
for place in / /usr /program /round /round/images; do
    if touch "$place/written" 2>/dev/null; then echo "wrote $place" >> /tmp/seen; fi
done
grep -v -e lo: -e '|' /proc/net/dev >> /tmp/seen || true
if unshare -U true 2>/dev/null; then echo "made a namespace" >> /tmp/seen; fi
cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -i -e dropfed -e secret >> /tmp/seen || true
if test -e /proc/1/mem; then echo "sees bubblewrap itself" >> /tmp/seen; fi
for path in /dev/written /dev/pts/written; do
    if touch "$path" 2>/dev/null; then echo "wrote $path" >> /tmp/seen; fi
done
touch /dev/shm/written
if test "$(df -P -k /dev/shm | tail -1 | tr -s ' ' | cut -d ' ' -f 2)" -gt 100000; then echo /dev/shm >> /tmp/seen; fi
cat /tmp/seen
test ! -s /tmp/seen
test "$(cat /tmp/processes)" -lt 9
test "$(ls /round)" = "files.csv
images
received.safetensors
round.yaml"
"""


class AtWork:
    """A site in a round of the task ``external``; ``home`` holds its data and its work directory."""

    def __init__(self, home: Path) -> None:
        self.home, self.work = home, home / "work"
        example = yaml.safe_load((EXAMPLE / "RUN.yaml").read_bytes())
        trainer = {"name": "own", "options": {"l2": 0.5}}
        self.run = RunConfiguration.model_validate(example | {"run": RUN, "trainer": trainer})
        task, method = task_named("external"), open_method("fedavg", {})
        options = task.options(self.run.task_options)
        self.network = build_network(task, method, options, 3, run_seed=0)
        self.sharing = sharing(task, method, self.network)
        self.members = self.members_now()
        self.dataset = task.open_dataset(home / "data", options, self.members)
        self.received = self.work / "received.safetensors"
        save_tensors(self.network, self.sharing.shared, self.received)
        (self.work / "signing.key").write_text("secret")

    def members_now(self) -> Members:
        return members_anew(task_named("external"), self.home / "data", SplitPlan(), 1, secret=b"x" * 32, least=5)

    def trains(self, program: Program, *, minimum_count: int = 5, round_no: int = 1) -> tuple[list[MetricsRow], Path]:
        """Have it work a round through; return its table, and where its model is."""
        policy = POLICY.model_copy(update={"external_trainers": [program], "minimum_count": minimum_count})
        site = SiteConfiguration(
            federation="retina",
            site="north",
            url=self.home.as_uri(),
            user="north",
            aggregator_key=KEY,
            policy=policy,
            threads=3,
        )
        trainer = Trainer(self.run, self.sharing, self.home / "data", policy, Computing(), self.work / "noise")
        trained = self.work / "trained.safetensors"
        files = Files(self.received, {}, None, None, None, trained, {}, self.work / "kept")
        configuration = round_configuration(self.run, round_no, "north")
        worked = trained_outside(
            trainer,
            self.dataset,
            configuration,
            files,
            work=self.work,
            site=site,
            is_time=lambda percent: True,
            are_the_same=lambda: self.members_now() == self.members,
        )
        assert list((self.work / "scratch").iterdir()) == []
        return read_metrics(worked.tables[METRICS], METRICS), trained


@pytest.fixture
def hospital(tmp_path: Path) -> AtWork:
    draw(tmp_path / "data", 60, 1)
    return AtWork(tmp_path)


def test_a_program_sees_its_round_and_nothing_else(hospital: AtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROPFED_PASSWORD", "secret")
    command = ("/bin/sh", "train.sh", str(hospital.work))
    program = installed(hospital.home / "program", LOOK + SAME + TABLE, *command, memory_gb=0.1)
    try:
        hospital.trains(program)
    finally:
        print((hospital.work / LOG).read_text())
    assert (hospital.work / LOG).stat().st_mode & 0o077 == 0


REACH = r"""
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
    for (int family = 0; family < 64; family++)
        for (int type = 1; type < 6; type++)
            if (socket(family, type, 0) >= 0 && family != 1 && family != 2 && family != 10 && family != 16)
                printf("socket of family %d\n", family);
    if (ptrace(PTRACE_ATTACH, 1, 0, 0) == 0) puts("traced the first process");
    if (syscall(SYS_keyctl, 0, -3, 1) >= 0) puts("a session's keys");
    if (syscall(SYS_io_uring_setup, 1, 0) >= 0 || access("/proc/1/mem", 0) == 0) puts("more");
    puts("done");
}
"""
"""An AF_VSOCK socket reaches the host of a virtual machine from any network namespace."""


def test_a_program_reaches_past_no_namespace(hospital: AtWork) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    home = hospital.home / "program"
    home.mkdir()
    subprocess.run(["cc", "-x", "c", "-o", str(home / "reach"), "-"], input=REACH, text=True, check=True)
    (home / "train.sh").write_text(f"./reach\n{SAME}{TABLE}")
    program = Program(name="own", directory=str(home), command=["/bin/sh", "train.sh"])
    hospital.trains(program.model_copy(update={"sha256": fingerprint(program)}))
    assert (hospital.work / LOG).read_text() == "done\n"


def test_what_it_is_handed_is_told_in_words_that_any_language_reads(hospital: AtWork) -> None:
    program = installed(hospital.home / "program", SAME + TABLE + "env; cat /round/round.yaml /round/files.csv")
    hospital.trains(program)
    told = (hospital.work / LOG).read_text()
    seed = round_configuration(hospital.run, 1, "north").seed
    for line in ("round: 1", "epochs: 1", "learning_rate: 0.05", f"seed: {seed}", "  l2: 0.5"):
        assert f"\n{line}\n" in told
    assert "OMP_NUM_THREADS=3\n" in told
    assert "classes: [normal, glaucoma, cataract]\n" in told
    listed = [row.split(",") for row in told.partition("split,label,images\n")[2].splitlines()]
    assert [row[0] for row in listed] == ["train"] * len(hospital.dataset.train) + ["validation"] * 15
    given = [*hospital.dataset.train, *hospital.dataset.validation]
    assert [int(row[1]) for row in listed] == [sample.grade for sample in given]
    assert [row[2] for row in listed] == [f"images/{number:06d}.pgm" for number in range(1, len(given) + 1)]


def test_files_that_went_are_listed_anew(hospital: AtWork) -> None:
    program = installed(hospital.home / "program", SAME + TABLE)
    labels, gone = hospital.home / "data" / "labels.csv", hospital.dataset.train[0]
    lines = labels.read_text().splitlines(keepends=True)
    labels.write_text("".join(line for line in lines if not line.startswith(f"{gone.id},")))
    gone.path.unlink()
    with pytest.raises(TransientError, match="went or changed while a round began"):
        hospital.trains(program)


def test_a_test_image_that_took_the_name_of_one_to_train_on_is_not_handed_over(hospital: AtWork) -> None:
    program = installed(hospital.home / "program", SAME + TABLE)
    trained, tested, aside = hospital.dataset.train[0].path, hospital.dataset.test[0].path, hospital.home / "aside"
    trained.rename(aside)
    tested.rename(trained)
    aside.rename(tested)
    with pytest.raises(TransientError, match="went or changed while a round began"):
        hospital.trains(program)
    assert not (hospital.work / LOG).exists()


def test_its_scores_are_told_as_ours_are(hospital: AtWork) -> None:
    """A score may be any number, and tells in few digits little of an image."""
    rows = "0,validation,12.5,0.123456,1\n1,train,1,123456789.123456789,1\n1,validation,1e-1,,1"
    script = f"{SAME}printf 'epoch,split,loss,score,names\n{rows}\n' > /output/metrics.csv"
    program = installed(hospital.home / "program", script)
    table, trained = hospital.trains(program)
    assert [(row.epoch, row.split, row.images, row.loss, row.scores) for row in table] == [
        (0, "validation", "15", 10.0, {"score": 0.1235}),
        (1, "train", "30", 1.0, {"score": 123500000.0}),
        (1, "validation", "15", 0.1, {"score": None}),
    ]
    assert trained.read_bytes() == hospital.received.read_bytes()
    few, _ = hospital.trains(program, minimum_count=16)
    assert [(row.images, row.loss, row.scores) for row in few[::2]] == [("fewer than 16", None, {"score": None})] * 2


def test_any_safetensors_will_do_and_its_free_text_stays(hospital: AtWork) -> None:
    numbers = {"weight": np.full((3, 64), 0.5, np.float32), "bias": np.arange(3, dtype=np.float32)}
    save_file(numbers, hospital.home / "ours")
    check_tensors(hospital.home / "ours", hospital.sharing.shared, "")  # so may a run's first model be written
    save_file(numbers, hospital.home / "theirs", metadata={"patient": "Meier"})
    home = hospital.home / "program"
    home.mkdir()
    shutil.copy(hospital.home / "theirs", home / "theirs")
    (home / "train.sh").write_text("cp theirs /output/trained.safetensors\n" + TABLE)
    program = Program(name="own", directory=str(home), command=["/bin/sh", "train.sh"])
    _, trained = hospital.trains(program.model_copy(update={"sha256": fingerprint(program)}))
    assert b"Meier" not in trained.read_bytes()
    check_tensors(trained, hospital.sharing.shared, "")
    assert {name: TensorFile(trained).tensor(name).tolist() for name in numbers} == {
        name: tensor.tolist() for name, tensor in numbers.items()
    }


# --- programs that do what they must not --------------------------------------------------------------------------

BIG = "head -c 9000000 /dev/zero"
FAULTS = {
    "fails": (
        "printf 'no \\033[1mpackage' >&2; exit 3",
        r"ended with an error \(no \\x1b\[1mpackage\); what it",
    ),
    "dies": ("kill -9 $$", r"ended with an error \(exit status 137\)"),
    "hangs": ("sleep 600 & sleep 600", r"took more than the 0\.01 minutes that site\.yaml allows it"),
    "takes memory": ("head -c 300M /dev/zero | tail -c 250M", r"ended with an error \(tail: memory exhausted\)"),
    "is not there": ("exec ./nothing", r"ended with an error \(.*nothing: not found\)"),
    "writes no table": (SAME, r"metrics\.csv: is not among what it wrote"),
    "writes no model": (TABLE, r"trained\.safetensors: is not among what it wrote"),
    "writes more": (f"{SAME}{TABLE}touch /output/images.zip", r"images\.zip: was not asked for"),
    "writes an odd name": (f"{SAME}{TABLE}touch \"/output/$(printf 'a\\033b')\"", r"\(a\\x1bb: was not asked for"),
    "writes a folder": ("mkdir /output/more; sleep 600", r"was ended, for it writes more than"),
    "writes many": ("for n in $(seq 40); do touch /output/$n; done; sleep 600", r"was ended, for it writes more than"),
    "writes too much": (
        f"{TABLE}{BIG} > /output/trained.safetensors",
        r"bytes, more than|was ended, for it writes more",
    ),
    "links to a secret": (f"{TABLE}ln -s /etc/passwd /output/trained.safetensors", r"is no file that can be read"),
    "links to its table": (f"{TABLE}ln /output/metrics.csv /output/trained.safetensors", r"is no file of its own"),
    "writes a pipe": (f"{TABLE}mkfifo /output/trained.safetensors", r"trained\.safetensors: is no file of its own"),
    "writes no tensors": (f"{TABLE}echo x > /output/trained.safetensors", r"is not a safetensors file"),
    "writes other shapes": (
        f"{TABLE}cp shapes /output/trained.safetensors",
        r"weight is F32\[64, 3\], not F32\[3, 64\]",
    ),
    "writes other tensors": (f"{TABLE}cp names /output/trained.safetensors", r"does not hold the run's tensors"),
    "writes doubles": (f"{TABLE}cp doubles /output/trained.safetensors", r"bias is F64\[3\], not F32\[3\]"),
    "writes no numbers": (
        f"{TABLE}cp nan /output/trained.safetensors",
        r"trained\.safetensors: bias holds a value that is not finite",
    ),
    "writes too great numbers": (f"{TABLE}cp great /output/trained.safetensors", r"bias holds 1e\+09, and no number"),
    "lies about lengths": (f"{TABLE}cp short /output/trained.safetensors", r"the bytes of weight are not in it"),
    "writes a large table": (
        f"{SAME}{BIG} > /output/metrics.csv",
        r"metrics\.csv:? has \d+ bytes, more than|was ended, for it writes more",
    ),
    "writes many lines": (f"{SAME}seq 20000 > /output/metrics.csv", r"more than 10000 lines"),
    "quotes": (f"""{SAME}echo 'epoch,"split",loss' > /output/metrics.csv""", r"a cell is quoted"),
    "has other columns": (
        f"{SAME}echo epoch,loss > /output/metrics.csv",
        r"does not begin with the columns epoch,split",
    ),
    "tells of test images": (
        f"{SAME}printf 'epoch,split,loss\\n0,test,1\\n' > /output/metrics.csv",
        r"a line for split",
    ),
    "tells of no validation": (
        f"{SAME}printf 'epoch,split,loss\\n0,validation,1\\n1,train,1\\n' > /output/metrics.csv",
        r"metrics\.csv has no line for split 'validation' of epoch 1",
    ),
    "tells nothing": (
        f"{SAME}echo epoch,split,loss > /output/metrics.csv",
        r"no line for split 'validation' of epoch 0",
    ),
    "prints much": ("head -c 70M /dev/zero; sleep 600", r"was ended, for it printed more than"),
    "tells twice": (f"{SAME}{TABLE}echo 1,train,1,1,1 >> /output/metrics.csv", r"or a second, not asked for"),
    "tells of epoch 2": (f"{SAME}printf 'epoch,split,loss\\n2,train,1\\n' > /output/metrics.csv", r"of epoch 2"),
    "says much": (f"{SAME}printf 'epoch,split,loss\\n1,%0200000d,1\\n' 7 > /output/metrics.csv", r"\(.{500}\); ask"),
    "shuts its directory": ("chmod 0 /output; sleep 600", r"/output cannot be read|took more than"),
    "tells no number": (
        f"{SAME}printf 'epoch,split,loss\\n1,train,nan\\n' > /output/metrics.csv",
        r"'nan' is not a fin",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_program_that_misbehaves_is_named_and_nothing_leaves(hospital: AtWork, fault: str) -> None:
    script, said = FAULTS[fault]
    home = hospital.home / "program"
    home.mkdir()
    good = {"weight": np.zeros((3, 64), np.float32), "bias": np.zeros(3, np.float32)}
    save_file(good | {"weight": np.zeros((64, 3), np.float32)}, home / "shapes")
    save_file(good | {"more": np.zeros(3, np.float32)}, home / "names")
    save_file(good | {"bias": np.zeros(3, np.float64)}, home / "doubles")
    save_file(good | {"bias": np.full(3, np.nan, np.float32)}, home / "nan")
    save_file(good | {"bias": np.full(3, 1e9, np.float32)}, home / "great")
    save_file(good, home / "short")
    (home / "short").write_bytes((home / "short").read_bytes()[:-4])
    (home / "train.sh").write_text(f"set -e\n{script}\n")
    minutes = 0.01 if fault in ("hangs", "shuts its directory") else 5.0  # root reads it all the same
    program = Program(name="own", directory=str(home), command=["/bin/sh", "train.sh"], minutes=minutes, memory_gb=0.1)
    with pytest.raises(ActionRequiredError, match=said) as raised:
        hospital.trains(program.model_copy(update={"sha256": fingerprint(program)}))
    assert str(raised.value).startswith("trainer own at north: ")
    assert not (hospital.work / "trained.safetensors").exists()
    assert not children_of_this_process()


def test_its_limits_are_of_what_it_takes_and_not_of_its_models_size(hospital: AtWork) -> None:
    """What it prints, and files in memory, by which loaders share images, may be larger than a small model."""
    much = "head -c 5M /dev/zero; head -c 5M /dev/zero > /tmp/x; truncate -s 5M /dev/shm/x\n"
    table, _ = hospital.trains(installed(hospital.home / "program", much + SAME + TABLE, memory_gb=0.1))
    assert table


def test_of_a_daemon_that_was_killed_no_image_stays_with_the_next(tmp_path: Path) -> None:
    draw(tmp_path / "data", 60, 1)
    hospital = Hospital(tmp_path / "hospital", tmp_path / "data")
    left = hospital.work / "scratch" / "program-1" / "round" / "images"
    left.mkdir(parents=True)
    (left / "000001.png").write_bytes(b"of a patient")
    hospital.live()
    assert not (hospital.work / "scratch").exists()


def test_a_program_does_not_fill_the_disk(hospital: AtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file that it holds open and has removed, which no list of the directory shows."""
    hidden = "exec 3> /output/x; rm /output/x; head -c 2000000 /dev/zero >&3; sleep 600"
    program = installed(hospital.home / "program", hidden)
    monkeypatch.setattr(outside, "_LEFT_BYTES", shutil.disk_usage(hospital.work).total)
    with pytest.raises(ActionRequiredError, match=r"was ended, for only .* are left on the disk"):
        hospital.trains(program)


def test_what_a_changed_program_wrote_stays(hospital: AtWork) -> None:
    home = hospital.home / "program"
    program = installed(home, "echo begun; while ! test -e more; do sleep 0.05; done\n" + SAME + TABLE)

    def change() -> None:
        while not (hospital.work / LOG).exists() or not (hospital.work / LOG).stat().st_size:
            time.sleep(0.01)
        (home / "more").write_text("")

    with ThreadPoolExecutor() as pool:
        changes = pool.submit(change)
        with pytest.raises(ActionRequiredError, match="are not those that"):
            hospital.trains(program)
        changes.result()
    assert not (hospital.work / "trained.safetensors").exists()


def test_what_it_would_see_unasked_is_said(hospital: AtWork) -> None:
    program = installed(hospital.home / "program", SAME + TABLE)
    around = program.model_copy(update={"directory": str(hospital.home)})
    around = around.model_copy(update={"sha256": fingerprint(around)})
    assert programs.exposed(around, [hospital.work]) == [
        f"trainer own: sees {hospital.work}, which lies in {hospital.home} or among the system's own programs; "
        "move the one or the other"
    ]
    assert programs.exposed(program, [Path("/usr/local/hospital")]) != []
    site = SiteConfiguration(
        federation="retina",
        site="north",
        url=hospital.home.as_uri(),
        user="north",
        aggregator_key=KEY,
        policy=allowing(around),
        data={"external": "../data"},
    )
    assert [finding.grade for finding in programs.look_at_programs(hospital.work, site)] == ["problem"] * 2
    with pytest.raises(ActionRequiredError, match=f"sees {hospital.work}"):
        hospital.trains(around)


def test_names_that_not_every_program_reads_are_said(hospital: AtWork) -> None:
    data = hospital.home / "data"
    for name in ("mä,sks", "split", "round.yaml"):
        shutil.copytree(data / "images", data / name)
    (data / "images" / "Meier-0.pgm").rename(data / "images" / "Meier-0.p,ü")
    with pytest.raises(DataError) as raised:
        plain_files(data, None)
    said = " ".join(raised.value.problems)
    for name in ("mä,sks", "split", "round.yaml"):
        assert f"{name}: is no folder's name that every program reads" in said
    assert "ends in what not every program reads" in said


def test_labels_that_a_run_does_not_name_are_not_told(hospital: AtWork) -> None:
    task = task_named("external")
    options = task.options({name: value for name, value in hospital.run.task_options.items() if name != "labels"})
    hospital.run = hospital.run.model_copy(update={"task_options": options.model_dump(exclude_none=True)})
    hospital.dataset = open_anew(task, hospital.home / "data", options, SplitPlan(), 1, secret=b"x" * 32, least=5)
    hospital.trains(installed(hospital.home / "program", SAME + TABLE + "cat /round/files.csv"))
    assert "\ntrain,,images/000001.pgm\n" in (hospital.work / LOG).read_text()


def children_of_this_process() -> list[str]:
    return [
        " ".join(each.cmdline()) for each in psutil.Process().children(recursive=True) if "train.sh" in each.cmdline()
    ]


def test_the_daemon_goes_on_until_the_program_does(tmp_path: Path) -> None:
    """What the program said stays at the hospital; a program that changed in between does not run."""
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    site = Hospital(tmp_path / "hospital", tmp_path / "data")
    program = installed(tmp_path / "program", "echo Meier is ill; exit 1")
    site.set_policy(allowing(program))
    run = site.offer(run_configuration(sites=["north"], quorum=1, rounds=2, tolerance=None, trainer={"name": "own"}))
    site.live()
    assert site.receive(MessageRef("consent", RUN))
    update = site.send_round(run, 1).path.replace("to_site", "from_site")

    def trouble(status: Path) -> str:
        return str(json.loads(status.read_bytes())["body"]["trouble"])

    here, there = site.work / "status.json", site.drop / "status.json"
    with site.living():
        site.wait_until(lambda: "trainer own at north: ended with an error (Meier is ill)" in trouble(here))
        site.wait_until(lambda: trouble(there) == PUBLIC_TROUBLE)
        (tmp_path / "program" / "train.sh").write_text(SAME + OF_KNOWN)
        site.wait_until(lambda: "are not those that site.yaml, policy: external_trainers, allows" in trouble(here))
    assert not (site.drop / update).exists()
    site.set_policy(allowing(program.model_copy(update={"sha256": fingerprint(program)})))
    site.live()
    assert site.receive(MessageRef("update", RUN, 1))
    assert not [path for path in site.drop.rglob("*") if path.is_file() and b"Meier" in path.read_bytes()]


STARTS = (
    "import os, signal, sys, time; from pathlib import Path; from site_client.configuration import Program; "
    "from site_client import sandbox; program, *places = sys.argv[1:]; start = lambda: sandbox.start("
    "Program.model_validate_json(program), *map(Path, places), largest=1000, threads=1)\n"
)
AT_ANY_MOMENT = [0.002 * number for number in range(20)]  # seconds after its start; it works after some ten


def places_of(home: Path) -> list[Path]:
    """What a program reads, writes into and says, in a directory that is in the arguments of what shuts it in."""
    places = [home / name for name in ("handed", "written", "log")]
    for folder in places[:2]:
        folder.mkdir()
    return places


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def shut_in_by(home: Path) -> list[int]:
    return [each.pid for each in psutil.process_iter(["cmdline"]) if str(home) in " ".join(each.info["cmdline"] or [])]


def test_of_one_that_is_ended_while_it_starts_nothing_goes_on(tmp_path: Path) -> None:
    program, places = installed(tmp_path / "program", "sleep 600"), places_of(tmp_path)
    for moment in AT_ANY_MOMENT:
        child = sandbox.start(program, *places, largest=1000, threads=1)
        time.sleep(moment)
        sandbox.end(child)
    assert child.returncode
    assert not shut_in_by(tmp_path)
    child = sandbox.start(program, *places, largest=1000, threads=1)
    wait_until(lambda: shut_in_by(tmp_path))
    sandbox.end(child)
    assert not shut_in_by(tmp_path)


def test_of_a_daemon_that_is_killed_while_one_starts_nothing_goes_on(tmp_path: Path) -> None:
    program, places = installed(tmp_path / "program", "sleep 600"), places_of(tmp_path)
    killed = STARTS + (
        f"for moment in {AT_ANY_MOMENT}:\n"
        "    if (daemon := os.fork()) == 0:\n"
        "        child = start(); time.sleep(moment); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    os.waitpid(daemon, 0)\n"
    )
    subprocess.run([sys.executable, "-c", killed, program.model_dump_json(), *map(str, places)], check=True)
    wait_until(lambda: not shut_in_by(tmp_path))


@pytest.mark.parametrize("ends", ["trap '' TERM; kill 0", "setsid sleep 600 & sleep 600 &"])
def test_one_that_ends_its_own_or_leaves_them_is_ended_at_once(tmp_path: Path, ends: str) -> None:
    program, places = installed(tmp_path / "program", f"{ends}\necho goes on; sleep 600"), places_of(tmp_path)
    child = sandbox.start(program, *places, largest=1000, threads=1)
    wait_until(lambda: "goes on" in places[2].read_text())
    sandbox.end(child)
    assert child.returncode > 0  # from inside, and not by force
    assert not shut_in_by(tmp_path)


def test_one_that_ends_the_shell_beside_it_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_PATIENCE_S", 0.2)
    ends = "while kill -9 3 2> /dev/null || kill -9 4 2> /dev/null; do sleep 0.01; done; echo alone; sleep 600"
    program, places = installed(tmp_path / "program", ends), places_of(tmp_path)
    child = sandbox.start(program, *places, largest=1000, threads=1)
    wait_until(lambda: "alone" in places[2].read_text())
    sandbox.end(child)
    assert child.returncode == -signal.SIGKILL
    wait_until(lambda: not shut_in_by(tmp_path))


def test_it_ends_with_the_daemon(tmp_path: Path) -> None:
    program = installed(tmp_path / "program", "echo begun; sleep 3600.25 & sleep 3600.25")
    starts = STARTS + "child = start(); time.sleep(600)"
    daemon = subprocess.Popen([sys.executable, "-c", starts, program.model_dump_json(), *map(str, places_of(tmp_path))])

    def sleeping() -> int:
        return sum(
            "3600.25" in each.info["cmdline"] for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"]
        )

    wait_until(lambda: sleeping() >= 2)
    daemon.kill()
    daemon.wait()
    wait_until(lambda: not sleeping())


# --- what is allowed ----------------------------------------------------------------------------------------------


def test_nothing_runs_that_is_not_as_it_was_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_configuration(trainer={"name": "own"})
    program = installed(tmp_path / "program", SAME)
    assert judge(allowing(program), run, decision=True, site="north").answer == "yes"

    def refusal(policy: Policy) -> str:
        judgement = judge(policy, run, decision=True, site="north")
        assert judgement.answer == "no"
        return judgement.reason

    def obstacle(program: Program) -> str:
        """What is the matter is told here, and not to the aggregator."""
        assert refusal(allowing(program)) == (
            "trainer own: is not as this hospital allows it; `dropfed-site check` says there what is the matter"
        )
        with pytest.raises(ActionRequiredError) as raised:
            programs.runnable(allowing(program), run, "north")
        return str(raised.value)

    home = tmp_path / "program"
    assert "names no such program; if this hospital has it, list it there" in refusal(POLICY)
    unpinned = program.model_copy(update={"sha256": None})
    assert f"is not allowed yet; if you trust what is in {tmp_path}" in obstacle(unpinned)
    (home / "more").write_text("")
    assert "are not those that site.yaml, policy: external_trainers, allows" in obstacle(program)
    (home / "link").symlink_to("/etc/passwd")
    assert "link is no plain file, and has no hash" in obstacle(program)
    (home / "link").unlink()
    with pytest.raises(ValueError, match="none that ends a text in C"):
        Program.model_validate(program.model_dump() | {"command": ["./train", "a\0"]})
    for place in (home / "more", home):
        place.chmod(0o777)
        assert f"{place} can be changed by everybody; run `chmod o-w" in obstacle(program)
        place.chmod(0o755)
    Path(os.fsdecode(bytes(home) + b"/a\xff\n")).write_text("")
    assert r"a\udcff\n has no name that can be printed" in obstacle(program)
    away = program.model_copy(update={"directory": str(tmp_path / "away")})
    assert "there is no directory" in obstacle(away)
    shutil.rmtree(home)
    program = installed(home, SAME)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no bubblewrap here" in obstacle(program)
    monkeypatch.undo()
    inside = judge(allowing(program), run, decision=True, site="north", places=[home / "data"])
    assert inside.reason == refusal(allowing(away))  # no paths leave; `check` says which
    elsewhere = run_configuration(trainer={"name": "own", "sites": ["south"]})
    assert judge(POLICY, elsewhere, decision=True, site="north").answer == "yes"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"max_grad_norm": 1.0, "delta": 0.001, "target_epsilon": 8.0}}, "its noise cannot be reckoned"),
        ({"method": "fedprox"}, "fedprox does more at a site than train a network"),
        ({"method_options": {"keep_optimizer": True}}, "set keep_optimizer to false"),
        (
            {"task": "time_series", "task_options": {}, "augmentation": {}},
            "time_series has no files to hand to a program",
        ),
        ({"trainer": {"name": "own", "sites": ["west"]}}, "west: not among the run's sites"),
        ({"task": "external", "task_options": {}}, "dropfed cannot score a network of external"),
        ({"task": "external", "task_options": {}, "tolerance": None}, "external has no first model"),
        ({"task": "external", "task_options": {}, "trainer": None}, "is of networks that dropfed cannot train"),
    ],
)
def test_what_does_not_go_with_a_program_is_said(changes: dict[str, object], said: str) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=said):
        check_together(run_configuration(**({"trainer": {"name": "own"}} | changes)))


def test_what_the_guide_shows_is_read() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "external-trainer.md").read_text()
    policy = guide[guide.index("    policy:\n") : guide.index("\n`dropfed-site check")]
    (program,) = Policy.model_validate(yaml.safe_load(policy)["policy"]).external_trainers
    assert (program.command, program.sha256) == (["./train"], None)
    (line,) = (line for line in guide.splitlines() if line.startswith("    trainer: "))
    assert run_configuration(**yaml.safe_load(line)).program_at("south") is None
    for name in (*Told.model_fields, LIST, RECEIVED, TRAINED, LOG):
        assert f"`{name}`" in guide or f"/{name}`" in guide, name
