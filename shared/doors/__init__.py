"""The doors: here, and nowhere else, bytes and texts from elsewhere become plain values.

There is one door for each kind of input, and each holds to the same three rules:

    bounds      sizes, digits, depths and counts are looked at before anything is converted, so that what comes in takes
                neither more time nor more memory than what belongs there
    one refusal whatever its parser raises, a bug or a panic of the library included, becomes a ``Refusal`` that says in
                a part of a sentence what is wrong
    no meaning  what the values stand for, which file they came in and what to do about it is said in the rooms above

Nothing here opens a file or a socket, and nothing of ours is imported but ``shared.escaping``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shared.escaping import escape


class Refusal(ValueError):  # noqa: N818  (it is no mistake of ours, so it is not called an error)
    """What came does not belong through this door.

    Its text is the rest of a sentence that begins with the name of what came, as in "is not canonical JSON"; what it
    repeats of that is made harmless.
    """

    def __init__(self, text: str) -> None:
        super().__init__(escape(text))


@contextmanager
def door(otherwise: str) -> Iterator[None]:
    """Turn whatever is raised inside into a ``Refusal``.

    Args:
        otherwise: the refusal's text, for all that is not a refusal already.

    Raises:
        Refusal: what was raised inside was an exception, or a panic of a library in Rust, which is none.
    """
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        raise Refusal(otherwise) from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # Ctrl-C and the like
            raise
        raise Refusal(otherwise) from error


def require_size(content: bytes, max_bytes: int) -> None:
    """Check that there is not too much to be read.

    Raises:
        Refusal: it is larger than ``max_bytes``.
    """
    if len(content) > max_bytes:
        raise Refusal(f"has {len(content)} bytes, more than {max_bytes}")
