"""``README.txt``: what a drop folder is, for whoever opens it. No other text lies there."""

from __future__ import annotations

from collections.abc import Mapping

from shared.exchange.records.values import PROTOCOL, Protocol

_TEXT = """\
This folder is how one hospital and the aggregator of a federated-learning run exchange files (dropfed, protocol {}).
No images and no patient data are ever put here, only model weights, settings and summary numbers.

  federation.json   who takes part here, and under which public keys (written by the aggregator)
  site.json         the hospital's card (written by the hospital)
  status.json       the hospital's heartbeat, the only file that is ever overwritten
  runs/             one folder per run: the offer, the hospital's consent, every round, the final model

Every other folder holds one signed message; its manifest.json names each file with its SHA-256.
To check everything:  dropfed-audit verify THIS_FOLDER
Please do not change or remove anything here: every change is noticed and stops the exchange.
"""

KNOWN_TEXTS: Mapping[Protocol, bytes] = {1: _TEXT.format(1).encode(), 2: _TEXT.format(2).encode()}
"""All that a protocol has ever written there."""
README_TEXT = KNOWN_TEXTS[PROTOCOL]
