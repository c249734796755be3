"""Which record a file of a message is: the counterpart of ``KINDS`` in ``shared/exchange/names.py``, which names it."""

from __future__ import annotations

from collections.abc import Mapping

from shared.exchange.records.answers import Abort, Consent, Reliability, Withdrawal
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import Payload
from shared.exchange.records.verdicts import FinalCard, Verdict

RECORDS: Mapping[str, type[Payload]] = {
    record.FILE: record
    for record in (
        RunConfiguration,
        Sharing,
        Consent,
        Withdrawal,
        RoundConfiguration,
        Reliability,
        Verdict,
        FinalCard,
        Abort,
    )
}
"""By the file's name: every file of ``KINDS`` but tables and tensors."""
