"""How both daemons read what belongs to their own machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from shared.doors.schema import AnyRecord
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.forms import text_like, text_that
from shared.exchange.reading import parse_yaml
from shared.folder.address import checked_address
from shared.folder.durable import read_private
from shared.folder.login import Password

PathText = Annotated[str, text_like(r"[^\0\ud800-\udfff]*", "a path in UTF-8 without the character NUL")]
UserText = Annotated[str, text_like(r"[^\ud800-\udfff]*", "a name in UTF-8")]
Address = Annotated[str, text_that(checked_address)]
"""Where a folder is reached, as a person wrote it."""


def read_settings(path: Path, kind: type[AnyRecord], remedy: str) -> AnyRecord:
    """Read a YAML file of settings.

    Args:
        remedy: how such a file is made, for who has none.

    Raises:
        ConfigurationError: it cannot be read, or every problem in it.
    """
    try:
        content = path.read_bytes()
    except OSError:
        raise ConfigurationError(
            [f"{path}: cannot be read; {remedy}, or name the work directory with --work"]
        ) from None
    return parse_yaml(content, kind, str(path))


def read_named(path: Path, remedy: str) -> bytes:
    """Read a file that a person named.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read ({error.strerror}); {remedy}"]) from None


def kept_password(path: Path, settings: str) -> Password:
    """Return the password in a file.

    Args:
        settings: the file that names user and password file, as people should read it.
    """
    remedy = f"correct user or url in {settings}, or write the right password into {path}"
    return Password(partial(read_password, path), remedy)


def read_password(path: Path) -> str:
    """Read a password from a file that only its owner may read; a line break at its end does not count.

    A public link may have none: then the file is empty.

    Raises:
        ActionRequiredError: missing, readable by others, or not text.
    """
    return _text(path, read_private(path))


def password_text(path: Path) -> str:
    """Read a password from a file whose rights are somebody else's matter: a systemd credential.

    Raises:
        ActionRequiredError: it cannot be read, or is not text.
    """
    try:
        return _text(path, path.read_bytes())
    except OSError as error:
        raise ActionRequiredError(
            f"{path} cannot be read ({error.strerror}): name a file that holds the password"
        ) from None


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").strip("\r\n")  # without the mark that editors of Windows put first
    except UnicodeDecodeError:
        raise ActionRequiredError(f"{path} does not hold text: put the password there") from None
