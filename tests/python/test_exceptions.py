# SPDX-License-Identifier: Apache-2.0
"""Exceptions keep the types that torch gives them."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import fleet


def test_torch_keeps_the_types_of_its_exceptions():
    code = """
import torch
def kinds():
    for call in (
        lambda: torch.ops.aten.linalg_inv(torch.zeros(2, 2)),
        lambda: torch.ops.aten.sin(torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.quint8)),
        lambda: torch.ops.aten.select(torch.ones(2), 0, 5),
    ):
        try:
            call()
        except Exception as error:
            yield type(error).__name__
before = list(kinds())
import fleet
assert list(kinds()) == before, list(kinds())
print(before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['_LinAlgError', 'NotImplementedError', 'IndexError']"


def kind_of(call):
    try:
        call()
    except Exception as error:
        return type(error)


def fails_in(raises):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raises()

    return Fails.apply


def raises_type_error():
    raise TypeError("mine")


@pytest.mark.parametrize("way", ["budget", "minimize"])
def test_exceptions_of_a_backward_keep_their_types(way):
    x = nn.Parameter(torch.rand(2, 2))
    failures = {
        "no derivative": lambda: torch.igamma(x, torch.ones(2, 2)).sum(),
        "LinAlgError": lambda: fails_in(lambda: torch.linalg.inv(torch.zeros(2, 2)))(x).sum(),
        "TypeError": lambda: fails_in(raises_type_error)(x).sum(),
    }
    for name, loss in failures.items():
        plain = kind_of(lambda: loss().backward())
        assert plain not in (None, RuntimeError), name
        if way == "budget":
            assert kind_of(lambda: fleet.MemoryBudget("1GiB").step(loss)) is plain
        else:
            model = nn.Module()
            model.x = x
            optimizer = fleet.distributed_optimizer(fleet.optim.SGD(model))
            assert kind_of(lambda: optimizer.minimize(loss)) is plain
