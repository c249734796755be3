"""``site.yaml``: what belongs to this hospital and never leaves it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from shared.doors import patterns
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange.forms import text_like
from shared.exchange.names import FEDERATION, MIRROR, SITE_CARD, Name
from shared.exchange.reading import dump_yaml
from shared.exchange.records.messages import Federation
from shared.exchange.records.run import DistributionName
from shared.exchange.records.values import Digest, PublicKey, Record
from shared.exchange.signing import open_signed
from shared.exchange.trust import open_federation
from shared.folder.address import folder_here
from shared.folder.contract import Folder
from shared.folder.durable import disk_trouble, write_file
from shared.folder.local import LocalFolder
from shared.folder.lock import is_at_work, require_private, require_work
from shared.folder.login import Password
from shared.folder.meter import TRANSFER, Direction, Meter
from shared.folder.ownership import make_folder
from shared.folder.webdav import WebDavFolder
from shared.learning.methods import method_names
from shared.learning.tasks import TASK_NAMES
from shared.logs import LogForm
from shared.settings import Address, PathText, UserText, kept_password, password_text, read_settings
from site_client.limits import Limits, require_transfer_hours

if TYPE_CHECKING:
    from shared.learning.compute import Computing

FILE = "site.yaml"
MADE_BY = "`dropfed-site join`"
RUNNING = "running.yaml"
PASSWORD_VARIABLE = "DROPFED_PASSWORD"  # noqa: S105  (the variable's name, not a password)

CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
"""Where systemd tells a service the folder of its credentials; one called ``password`` is the password."""

MOST_WORKERS_UNASKED = 8

Device = Annotated[str, text_like(r"cpu|cuda(:[0-9]{1,2})?", "cpu, cuda, or cuda and a number, as in cuda:0")]
Endpoint = Annotated[
    str, text_like(r"[A-Za-z0-9.-]+:[0-9]{1,5}", "a machine's address and a port, as in 10.0.0.5:29500")
]


def _is_pattern(text: str) -> str:
    patterns.parse(text)
    return text


GroupPattern = Annotated[str, StringConstraints(min_length=1), AfterValidator(_is_pattern)]
"""Nobody but this hospital's own people says what its names are matched against."""


Argument = Annotated[str, text_like(r"[^\0]{0,1000}", "at most 1000 characters, and none that ends a text in C")]


class Program(Record):
    """A program that this hospital installed, and may train by instead of PyTorch.

    Args:
        name: what runs call it by.
        directory: it is all of it, but for the system's own programs and libraries.
        sha256: of the directory's files, as `dropfed-site check` prints it; None: it may not run yet.
        command: the program and its arguments; it is started in the directory.
    """

    name: Name
    directory: Annotated[str, text_like(r"/[^\0\n]{1,1000}", "a directory's whole path, from / on")]
    sha256: Digest | None = None
    command: Annotated[list[Argument], Field(min_length=1, max_length=100)]
    minutes: Annotated[float, Field(gt=0, description="that a round may take")] = 720.0
    memory_gb: Annotated[float, Field(gt=0, description="that each of its processes may take")] = 16.0


class Policy(Record):
    """What this hospital agrees to. ``consent: ask`` waits for `dropfed-site approve RUN`."""

    consent: Literal["ask", "auto"] = "ask"
    tasks: list[Name] = list(TASK_NAMES)
    methods: list[Name] = Field(default_factory=lambda: list(method_names()))
    plugins: Annotated[
        dict[DistributionName, Digest], Field(max_length=100, description="wheels of others that may run here")
    ] = {}
    plugin_minutes: Annotated[float, Field(gt=0, description="that one piece of a plug-in's work may take")] = 720.0
    external_trainers: Annotated[
        list[Program], Field(max_length=16, description="programs that may train here instead of PyTorch")
    ] = []
    max_rounds: Annotated[int, Field(ge=1, description="of a run")] = 1000
    max_epochs: Annotated[int, Field(ge=1, description="local epochs per round")] = 5
    max_views: Annotated[int, Field(ge=1, description="how often a run may show the model one image")] = 5000
    max_parameters: Annotated[int, Field(ge=1, description="of all networks that a run trains at once")] = 200_000_000
    max_memory_gb: Annotated[float, Field(gt=0, description="that training takes with the run's images, about")] = 16.0
    max_epsilon: Annotated[
        float | None, Field(gt=0, description="of a private run; None: runs need not be private")
    ] = None
    max_delta: Annotated[float, Field(gt=0, le=0.01, description="of a private run")] = 0.001
    total_epsilon: Annotated[float, Field(gt=0, description="of all private runs together")] = 10.0
    total_delta: Annotated[float, Field(gt=0, le=0.01, description="for which total_epsilon is reckoned")] = 0.001
    encryption: Annotated[
        Literal["allowed", "required"], Field(description="of the weights, against whoever runs the server")
    ] = "allowed"
    minimum_count: Annotated[int, Field(ge=1, le=1000, description="fewer images than that nothing is about")] = 5
    minimum_training_images: Annotated[int, Field(ge=1, description="that a run trains on here")] = 20
    statistics: Annotated[
        Literal["ask", "auto", "never"], Field(description="a sheet of figures about the images, for a survey")
    ] = "ask"
    statistics_minimum_count: Annotated[
        int, Field(ge=1, le=1000, description="fewer images than that no figure of such a sheet is about")
    ] = 10
    rows_per_set: Annotated[int, Field(ge=1, description="of scores over one set of images, in all runs together")] = (
        5000
    )

    @model_validator(mode="after")
    def _each_program_has_its_own_name(self) -> Policy:
        names = [program.name for program in self.external_trainers]
        if len(set(names)) < len(names):
            raise ValueError("external_trainers: two have one name; give each its own")
        return self


class SiteConfiguration(Record):
    """The whole file. Paths are relative to the work directory.

    ``data``: by task, this hospital's folder. ``out_of_distribution``: by task, unlabelled images unlike the hospital's
    own.
    ``groups``: by task, a regular expression that finds in an image's name whose it is.
    ``workers`` are processes that prepare images while others are learnt from, and change no number. A CPU does well
    without, for it spends one part in fifty of its time on that; a GPU would wait most of the time.
    ``micro_batch`` is for machines with little memory: the gradients of a batch's parts are added up before its step.
    ``gpu_memory_gb`` leaves the rest of a shared GPU to others: training that needs more ends, and says so.
    ``exchange`` is a directory in which the daemon works, and not on the server, where it has no network:
    `dropfed-site move` goes between the two.
    ``launcher`` says who trains: the daemon itself, or torchrun's ``processes`` on each of ``nodes`` machines.
    """

    federation: Name
    site: Name
    url: Address
    user: UserText
    password_file: PathText = "password"  # noqa: S105  (a file's name, not a password)
    ca_file: PathText | None = None
    exchange: PathText | None = None
    aggregator_key: PublicKey
    data: dict[Name, PathText] = {}
    out_of_distribution: dict[Name, PathText] = {}
    groups: dict[Name, GroupPattern] = {}
    policy: Policy = Policy()
    device: Device = "cpu"
    threads: Annotated[int, Field(ge=1, le=256, description="CPU threads for training")] = 1
    workers: Annotated[int, Field(ge=0, le=64, description="processes that prepare images")] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    micro_batch: Annotated[int, Field(ge=1, le=4096, description="images that training answers at once")] | None = None
    gpu_memory_gb: Annotated[float, Field(gt=0, description="of its GPU that each process may take")] | None = None
    launcher: Literal["daemon", "torchrun"] = "daemon"
    processes: Annotated[int, Field(ge=1, le=64, description="that train together on each machine")] = 1
    nodes: Annotated[int, Field(ge=1, le=64, description="machines that train together")] = 1
    rendezvous: Endpoint | None = None
    limits: Limits = Limits()
    poll_seconds: Annotated[float, Field(ge=0.01, le=3600, description="longest pause between two looks")] = 30.0
    log: LogForm = "text"

    @model_validator(mode="after")
    def _launcher_fits(self) -> SiteConfiguration:
        if self.launcher == "daemon" and (self.processes > 1 or self.nodes > 1):
            raise ValueError("processes, nodes: only torchrun starts more than one; add `launcher: torchrun`")
        if self.launcher == "torchrun" and self.device not in ("cpu", "cuda"):
            raise ValueError(f"device: {self.device} is one GPU; torchrun gives each process its own of `device: cuda`")
        if self.gpu_memory_gb is not None and self.device == "cpu":
            raise ValueError("gpu_memory_gb: `device: cpu` uses no GPU; leave it out, or set `device: cuda`")
        if (self.nodes > 1) != (self.rendezvous is not None):
            raise ValueError("rendezvous: of more than one node, and only then, name the daemon's address and a port")
        return self


def require_site(work: Path) -> None:
    """Check that a directory is a site's; settings that are just being edited are no obstacle.

    Raises:
        ConfigurationError: it is not.
    """
    if not (work / FILE).exists():
        read_configuration(work)


def require_here(work: Path) -> None:
    """Check that a site was set up in a directory, whatever has become of its settings since.

    Raises:
        ConfigurationError: there is no such directory, or it is no site's.
    """
    require_work(work, MADE_BY)
    if not (work / FILE).exists() and not (work / MIRROR).is_dir():
        raise ConfigurationError(
            [f"{work}: is no site's work directory: {FILE} is not in it; name that with --work, or run {MADE_BY}"]
        )


def read_configuration(work: Path) -> SiteConfiguration:
    """Read ``site.yaml`` in the work directory.

    Raises:
        ConfigurationError: it is missing, or every problem in it; or it names another site than takes part from here.
    """
    configuration = read_settings(work / FILE, SiteConfiguration, "run `dropfed-site join INVITE`")
    if problems := _misfits(work, configuration):
        raise ConfigurationError(problems)
    return configuration


def _misfits(work: Path, configuration: SiteConfiguration) -> list[str]:
    """Return where the settings contradict the site that takes part from here, by the aggregator or by its card."""
    for name in (FEDERATION, SITE_CARD):
        path = work / MIRROR / name
        try:
            known, _ = open_signed(path.read_bytes())
        except (FileNotFoundError, ValueError):  # a damaged one is told of where it is needed
            continue
        return [
            f"{work / FILE}: {key}: says {said}, and {path} says that this directory takes part as {known[key]}: "
            f"write that into {FILE}, or name the other site's directory with --work"
            for key in ("federation", "site", "aggregator_key")
            if key in known and known[key] != (said := getattr(configuration, key))
        ]
    return []


def other_site(where: str, reason: str, configuration: SiteConfiguration) -> ActionRequiredError:
    """Return what is said where the folder shows another site than the settings."""
    us = f"{configuration.federation}/{configuration.site}"
    return ActionRequiredError(f"{where} {reason}, {FILE} is for {us}: correct federation, site or url there")


def no_card(work: Path) -> ActionRequiredError:
    """Return what is said where this site's card is neither here nor in the folder."""
    return ActionRequiredError(
        f"{SITE_CARD} is neither in {work / MIRROR} nor in the folder: type `dropfed-site join` with the invite once "
        "more, which makes it of the keys that are here; if the folder had it, have its people put it back"
    )


def opened_federation(content: bytes, configuration: SiteConfiguration) -> Federation:
    """Return ``federation.json`` as the folder has it, if the aggregator that this site trusts wrote it.

    Raises:
        ActionRequiredError: somebody else did, or it is damaged.
    """
    try:
        return open_federation(content, aggregator_key=configuration.aggregator_key)
    except RejectedError as error:
        raise ActionRequiredError(f"{error}: do not go on, and tell the aggregator's people") from None


def identity(work: Path) -> Federation | SiteConfiguration:
    """Return as whom this site takes part, and the aggregator's key, even if ``site.yaml`` is broken.

    Raises:
        ConfigurationError: the aggregator has not accepted this site yet, and ``site.yaml`` cannot be read.
    """
    try:
        return open_federation((work / MIRROR / FEDERATION).read_bytes(), aggregator_key=None)
    except (FileNotFoundError, RejectedError):
        return read_configuration(work)


def note_running(work: Path, configuration: SiteConfiguration) -> None:
    """Keep the settings that the daemon starts with where ``status`` finds them."""
    write_file(work / RUNNING, dump_yaml(configuration), private=True)


def running_configuration(work: Path) -> SiteConfiguration:
    """Return the settings that the daemon at work here started with.

    Raises:
        ConfigurationError: an earlier version did not keep them, and ``site.yaml`` cannot be read.
    """
    path = work / RUNNING
    return (
        read_settings(path, SiteConfiguration, "start the daemon anew") if path.exists() else read_configuration(work)
    )


def changed_settings(work: Path, running: SiteConfiguration) -> str | None:
    """Return that ``site.yaml`` is not what the daemon at work here started with; None if it is."""
    try:
        if read_configuration(work) == running:
            return None
    except ConfigurationError as error:
        return f"{'; '.join(error.problems)}; the daemon goes on with what it started with"
    return f"{work / FILE} was changed since the daemon started; what it says now holds from the next start on"


def configuration_in_force(work: Path) -> SiteConfiguration:
    """Return the settings of the daemon at work here, or those that it would start with.

    Raises:
        ConfigurationError: they cannot be read.
    """
    return running_configuration(work) if is_at_work(work) else read_configuration(work)


def workers_of(configuration: SiteConfiguration) -> int:
    """Return how many processes prepare images for one that trains.

    That is what the file says, or for a GPU its part of all cores but one, up to eight.
    """
    if configuration.workers is not None:
        return configuration.workers
    if configuration.device == "cpu" or not hasattr(os, "memfd_create"):  # as loading.can_fork asks, without PyTorch
        return 0
    return min((len(os.sched_getaffinity(0)) - 1) // configuration.processes, MOST_WORKERS_UNASKED)


def computing_of(configuration: SiteConfiguration) -> Computing:
    """Return where and how this site trains."""
    from shared.learning.compute import Computing  # noqa: PLC0415  (PyTorch)

    return Computing(
        configuration.device,
        workers_of(configuration),
        configuration.precision,
        micro_batch=configuration.micro_batch,
        gpu_memory_gb=configuration.gpu_memory_gb,
    )


def open_folder(
    work: Path, configuration: SiteConfiguration, permit: Callable[[Direction], None] = lambda _: None
) -> Folder:
    """Return the folder in which the daemon works: the hospital's on the server, or the directory in its place.

    Raises:
        ActionRequiredError: see ``open_server``.
    """
    if configuration.exchange is not None:
        return open_exchange(work, configuration.exchange)
    return open_server(work, configuration, permit)


def open_exchange(work: Path, exchange: str) -> LocalFolder:
    """Return the directory in which the daemon works where it has no network; made if it is not there.

    Raises:
        ActionRequiredError: it cannot be made, or others than its owner may enter it.
    """
    root = work / exchange
    try:
        root.parent.stat()  # a disk that is not mounted now is not made
        make_folder(root, 0o700)
    except OSError as error:
        raise disk_trouble(error, root) from error
    require_private(root)
    return LocalFolder(root)


def open_server(
    work: Path, configuration: SiteConfiguration, permit: Callable[[Direction], None] = lambda _: None
) -> Folder:
    """Connect to the hospital's folder, and keep the limits.

    Args:
        permit: called before each block of a large file; raises what stands against moving it, besides the limits.

    Raises:
        ActionRequiredError: no password, a password file that others can read, or an unusable address.
    """
    limits = configuration.limits
    megabits: dict[Direction, float | None] = {"up": limits.upload_megabits, "down": limits.download_megabits}

    def permit_within_limits(direction: Direction) -> None:
        permit(direction)
        require_transfer_hours(limits.transfer_hours)

    meter = Meter(
        work / TRANSFER,
        limits={direction: rate * 1e6 / 8 for direction, rate in megabits.items() if rate is not None},
        permit=permit_within_limits,
    )
    return connect(work, configuration, meter)


def connect(work: Path, configuration: SiteConfiguration, meter: Meter, *, password: Password | None = None) -> Folder:
    """Connect to the hospital's folder, with the password of the environment, of systemd or of the password file.

    A folder of this machine needs no password, and nothing moves far enough to be held back.

    Args:
        meter: what watches and holds back large files; one of its own does neither.
        password: to enter with instead.

    Raises:
        ActionRequiredError: no password, a password file that others can read, or an unusable address.
    """
    if (root := folder_here(configuration.url)) is not None:
        return LocalFolder(root)
    password = password or _password(work / configuration.password_file)
    return WebDavFolder(
        configuration.url, configuration.user, password, ca_file=ca_file_of(work, configuration), meter=meter
    )


def ca_file_of(work: Path, configuration: SiteConfiguration) -> Path | None:
    """Return the file of certificate authorities that are trusted instead of the public ones, if there is one."""
    return work / configuration.ca_file if configuration.ca_file else None


def has_credential() -> bool:
    """Return whether systemd gives the password, so that no file in the work directory need hold it."""
    return _credential() is not None


def _credential() -> Path | None:
    """Return the password that systemd gives to this service, if it gives one."""
    folder = os.environ.get(CREDENTIALS_VARIABLE)
    path = Path(folder, "password") if folder else None
    return path if path is not None and path.exists() else None


def _password(path: Path) -> Password:
    """Return the password of the environment, or else of systemd, or else of the password file."""
    if given := os.environ.get(PASSWORD_VARIABLE):
        remedy = f"correct user or url in {FILE}, or set the right password in {PASSWORD_VARIABLE} and start again"
        return Password(lambda: given, remedy)
    if (credential := _credential()) is not None:
        remedy = f"correct user or url in {FILE}, or give systemd the right credential `password` and restart the unit"
        return Password(partial(password_text, credential), remedy)
    if not path.exists():
        raise ActionRequiredError(
            f"{path} is missing and {PASSWORD_VARIABLE} is not set: write the password into the file, readable by you "
            "alone (chmod 600), or set the variable"
        )
    return kept_password(path, FILE)
