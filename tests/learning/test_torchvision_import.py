"""The door to torchvision: plain where that works, with two operators declared where it does not."""

import importlib
import subprocess
import sys

import pytest
import torch

from shared.errors import DropfedError
from shared.learning.models import torchvision_import
from shared.learning.models.torchvision_import import import_models

MISSING = RuntimeError("operator torchvision::nms does not exist")


@pytest.fixture
def imports(monkeypatch):
    """Lets each import of torchvision end as listed; whatever is left of the list was not tried."""
    import_models()  # the real one first: its own operators must not meet ours later

    def prepare(*outcomes):
        left = list(outcomes)

        def import_module(name):
            assert name == "torchvision.models"
            outcome = left.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(importlib, "import_module", import_module)
        return left

    return prepare


def test_it_works_here_and_only_when_asked_for():
    program = """
import sys
from shared.learning.models.encoders import build_encoder
from shared.learning.models.torchvision_import import import_models
build_encoder("small")
assert "torchvision" not in sys.modules
import torch
assert import_models().resnet18().eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
"""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], check=True)


def test_a_plain_import_is_left_alone(imports, monkeypatch):
    monkeypatch.setattr(torchvision_import, "_declare_missing_operators", lambda: pytest.fail("was not needed"))
    imports(torch)
    assert import_models() is torch


def test_missing_operators_are_declared_and_the_import_tried_again(imports):
    left = imports(MISSING, torch)
    assert import_models() is torch
    assert left == []
    assert hasattr(torch.ops.torchvision, "nms")
    assert hasattr(torch.ops.torchvision, "qnms")


@pytest.mark.parametrize(
    "outcomes",
    [
        [ModuleNotFoundError("No module named 'torchvision'")],
        [RuntimeError("compiled with different CUDA major versions")],
        [OSError("libcudart.so.13: cannot open shared object file")],
        [MISSING, MISSING],
    ],
)
def test_what_cannot_be_cured_is_one_sentence_with_a_remedy(imports, outcomes):
    left = imports(*outcomes)
    with pytest.raises(DropfedError) as caught:
        import_models()
    assert left == []
    message = str(caught.value)
    assert str(outcomes[-1]) in message
    assert f"install the torchvision that belongs to torch {torch.__version__}" in message
    assert "\n" not in message
