# SPDX-License-Identifier: Apache-2.0
"""Small twins of public failures of torch.utils.checkpoint, which runs the user's code a second time.
There it raises CheckpointError or returns other gradients; Fleet calls the recorded ops again, and is
equal to plain training. Each names the thread it is a twin of."""

import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

import fleet
from fleet._C import testing


class Experts(nn.Module):
    """A mixture of experts whose router moves a bias in every forward, to balance their load."""

    def __init__(self, width=32, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(experts))
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        choice = (scores + self.bias).argmax(-1)
        y = torch.zeros_like(x)
        load = torch.zeros_like(self.bias)
        for i, expert in enumerate(self.experts):
            (rows,) = torch.where(choice == i)
            load[i] = rows.numel()
            y = y.index_add(0, rows, expert(x[rows]) * scores[rows, i, None])
        with torch.no_grad():
            self.bias -= 0.2 * (load / load.sum() - 1 / load.numel()).sign()
        return x + y


class Cached(nn.Module):
    """Attention that appends its keys and values to a cache, as decoders do."""

    def __init__(self, width=32):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.keys, self.values = [], []

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.append(k)
        self.values.append(v)
        weights = (q @ torch.cat(self.keys, 0).T / 5).softmax(-1)
        return x + weights @ torch.cat(self.values, 0)


class Mutating(nn.Module):
    """Normalizes its argument in place before it uses it."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        x.mul_(0.5).add_(1)
        return self.linear(x).tanh() * x


class MutatingList(nn.Module):
    """Pops what it needs from a list that the caller passes."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.inputs = []

    def forward(self, x):
        self.inputs.append(x)
        return self.linear(self.inputs[0] if len(self.inputs) == 1 else self.inputs[-1] * 2).sin()


class OwnGenerator(nn.Module):
    """Drops by a generator of its own, as loaders and samplers do on their threads."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        mask = torch.rand(x.shape, generator=self.generator) > 0.5
        return self.linear(x * mask).tanh()

    def __deepcopy__(self, memo):
        other = type(self)(self.linear.in_features)
        other.load_state_dict(self.state_dict())
        return other


class LayerDrop(nn.Module):
    """Skips layers by numbers of NumPy and of Python's random."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            if numpy.random.rand() < 0.5 and random.random() < 0.8:
                x = layer(x).tanh()
        return x + self.layers[0](x)


class Autocast(nn.Module):
    """Runs in the precision that a counter of its own asks for: low until it has warmed up."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self.calls % 2 == 1):
            return self.linear(x).gelu().float() if hasattr(x, "gelu") else F.gelu(self.linear(x)).float()


MUSEUM = {
    "routing that flips (NeMo Automodel#2635, #3325; VeOmni#979; torchtitan#1117)": Experts,
    "a cache that grows (NeMo Automodel#3325)": Cached,
    "an argument changed in place (TabPFN#1138)": Mutating,
    "a list that is changed (TabPFN#1138)": MutatingList,
    "random numbers of another generator (torchtitan#1117)": OwnGenerator,
    "random numbers of NumPy (VeOmni#979)": LayerDrop,
    "autocast inside, by state (NeMo Automodel#2635)": Autocast,
}


def gradients(make, call):
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    block = make()
    head = nn.Linear(32, 32)
    source = torch.randn(64, 32, requires_grad=True)
    x = head(source).clone()
    loss = call(block, x).square().mean()
    loss.backward()
    return [loss.detach(), source.grad, *(p.grad for p in [*head.parameters(), *block.parameters()]), *block.buffers(), torch.rand(3)]


def same(a, b):
    return all((x is None and y is None) or (x is not None and y is not None and torch.equal(x, y)) for x, y in zip(a, b))


@pytest.mark.parametrize("name", MUSEUM)
def test_checkpoint_fails_or_is_wrong_and_fleet_is_plain(name):
    make = MUSEUM[name]
    plain = gradients(make, lambda block, x: block(x))
    try:
        theirs = gradients(make, lambda block, x: checkpoint(block, x, use_reentrant=False))
        assert not same(theirs, plain), "it is no failure any more: take it out"
    except (CheckpointError, RuntimeError):
        pass
    before = testing.replayed_ops()
    ours = gradients(make, lambda block, x: fleet.recompute(block, x))
    assert testing.replayed_ops() > before
    assert same(ours, plain)
