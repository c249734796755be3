"""``README.txt``: what a drop folder is, for whoever opens it. No other text lies there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.exchange.records.values import Protocol

_TEXT = """\
This folder is how one hospital and the aggregator of a federated-learning run exchange files (dropfed, protocol 2).
dropfed puts no images, masks, labels or names of patients here, only model weights, settings, numbers and reasons
that people wrote. Weights and numbers are computed from images of patients and are not anonymous: from weights, parts
of images that a model was trained on may be revealed. Pass nothing of this folder on.

  federation.json   who takes part here, and under which public keys (written by the aggregator)
  site.json         the hospital's card (written by the hospital)
  status.json       the hospital's heartbeat, the only file that is ever overwritten
  keys/             the hospital's later public keys; those of the aggregator are in aggregator_keys/
  surveys/          what the aggregator asks about the hospital's images; its answers, in figures, are in sheets/
  runs/             one folder per run: the offer, the hospital's consent, every round, the final model

Every folder in runs/ that holds files holds one signed message; its manifest.json names each with its SHA-256.
To check everything:  dropfed-audit verify THIS_FOLDER
Please do not change or remove anything here: every change is noticed and stops the exchange.
"""
_EARLIER = """\
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

README_TEXT = _TEXT.encode()
KNOWN_TEXTS: Mapping[Protocol, Sequence[bytes]] = {
    1: (_EARLIER.format(1).encode(),),
    2: (_EARLIER.format(2).encode(), README_TEXT),
}
"""All that a protocol has ever written there."""
