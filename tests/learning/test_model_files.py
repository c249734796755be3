"""From a network to what travels of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shared.exchange.records.tensors import TensorList, TensorShape
from shared.learning.model_files import round_tensors

WEIGHT = TensorList(tensors={"weight": TensorShape(dtype="F32", shape=[3, 5])})


@pytest.mark.parametrize(
    ("numbers", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_what_travels_is_rounded_and_nothing_else(numbers: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = nn.Linear(5, 3)
    weight, bias = model.weight.clone(), model.bias.clone()
    round_tensors(model, WEIGHT, numbers)
    assert torch.equal(model.weight, weight.to(dtype).to(torch.float32))
    assert torch.equal(model.weight, weight) == (numbers == "float32")
    assert torch.equal(model.bias, bias)
    assert model.weight.requires_grad


def test_what_is_too_great_is_named() -> None:
    model = nn.Linear(5, 3)
    with torch.no_grad():
        model.weight[1, 2] = 65520
    round_tensors(model, WEIGHT, "bfloat16")
    with pytest.raises(ValueError, match="weight"):
        round_tensors(model, WEIGHT, "float16")
