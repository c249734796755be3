"""The process in which a site has a plug-in's code work; see ``shared/learning/apart.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from shared.learning.apart import Question
from shared.learning.plugged import work
from site_client.final import KeepFinal
from site_client.folders import UnitsIn
from site_client.train import CountsOf, RequirementsOf, Train
from site_client.trouble import as_trouble

KINDS: dict[str, type[Question[Any]]] = {
    kind.__name__: kind for kind in (CountsOf, KeepFinal, RequirementsOf, Train, UnitsIn)
}

if __name__ == "__main__":
    work(Path(sys.argv[1]), KINDS, as_trouble)
