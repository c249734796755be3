"""What may stand in the way of a site's work, as one sentence with a remedy."""

from __future__ import annotations

from pathlib import Path

import torch

from shared.errors import ActionRequiredError, DataError, DoubtfulError, DropfedError, RejectedError
from shared.escaping import quoted
from shared.folder.durable import disk_trouble
from shared.trouble import UnexpectedError


def as_trouble(error: Exception, work: Path) -> DropfedError:
    """Return what was raised as people are told it."""
    if isinstance(error, OSError):
        return disk_trouble(error, work)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return ActionRequiredError(f"the memory is full ({type(error).__name__}): lower batch_size, or free some")
    if not isinstance(error, DropfedError):
        return UnexpectedError(error)
    if isinstance(error, DataError):
        count = len(error.problems)
        more = f" (and {count - 1} more; `dropfed-site check --work {quoted(work)}` lists them)" if count > 1 else ""
        return ActionRequiredError(f"{error.problems[0]}{more}")
    if isinstance(error, DoubtfulError):
        return ActionRequiredError(f"{error}: {error.remedy}")
    if isinstance(error, RejectedError):
        return RejectedError(error.file, f"{error.reason}: not followed; tell the aggregator's people")
    return error
