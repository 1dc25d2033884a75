# SPDX-License-Identifier: Apache-2.0
"""Small twins of failures of torch.utils.checkpoint, which runs the user's code a second time. There
it raises CheckpointError or returns other gradients; Fleet calls the recorded ops again, and is equal
to plain training. Those that somebody has reported name the thread."""

from concurrent.futures import ThreadPoolExecutor
import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

import fleet
from fleet._C import testing
from training import assert_equal, train

ROWS = 256


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


class Popping(nn.Module):
    """Takes its input out of a list, so that the caller can let go of it."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, inputs):
        return self.linear(inputs.pop(0)).sin()


class OwnGenerator(nn.Module):
    """Drops by a generator of its own."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        mask = torch.rand(x.shape, generator=self.generator) > 0.5
        return self.linear(x * mask).tanh()


class Prefetched(nn.Module):
    """Takes masks that a thread draws ahead, as samplers do."""

    def __init__(self, width=32):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.thread = ThreadPoolExecutor(1)
        self.generator = torch.Generator().manual_seed(3)
        self.next = self.thread.submit(self.draw)

    def draw(self):
        return torch.rand(ROWS, 32, generator=self.generator) > 0.5

    def forward(self, x):
        mask, self.next = self.next.result(), self.thread.submit(self.draw)
        return self.linear(x * mask).tanh()


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


REGRESSIONS = {
    "routing that flips (NeMo Automodel#2635, torchtitan#1117)": Experts,
    "a cache that grows (pytorch#155171, MemoryVLA#18)": Cached,
    "an argument changed in place": Mutating,
    "an argument that is a list and is emptied (TabPFN#1138)": Popping,
    "random numbers of another generator": OwnGenerator,
    "randomness on another thread": Prefetched,
    "random numbers of NumPy": LayerDrop,
    "autocast inside, by state (pytorch#141896 is its kin)": Autocast,
}


def gradients(make, call):
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    block = make()
    head = nn.Linear(32, 32)
    source = torch.randn(ROWS, 32, requires_grad=True)
    x = head(source).clone()
    loss = call(block, [x] if make is Popping else x).square().mean()
    loss.backward()
    return [loss.detach(), source.grad, *(p.grad for p in [*head.parameters(), *block.parameters()]), *block.buffers(), torch.rand(3)]


def same(a, b):
    return all((x is None and y is None) or (x is not None and y is not None and torch.equal(x, y)) for x, y in zip(a, b))


@pytest.mark.parametrize("name", REGRESSIONS)
def test_checkpoint_fails_or_is_wrong_and_fleet_is_plain(name):
    make = REGRESSIONS[name]
    plain = gradients(make, lambda block, x: block(x))
    try:
        theirs = gradients(make, lambda block, x: checkpoint(block, x, use_reentrant=False))
        assert not same(theirs, plain), "it is no failure any more: take it out"
    except (CheckpointError, RuntimeError, IndexError):
        pass
    before = testing.replayed_ops()
    ours = gradients(make, lambda block, x: fleet.recompute(block, x))
    assert testing.replayed_ops() > before
    assert same(ours, plain)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_memory_budget_is_plain(name):
    block = REGRESSIONS[name]

    def make():
        source = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(1))

        def loss(model):
            if block is Cached:
                model[1].keys.clear(), model[1].values.clear()
            x = model[0](source) * 2
            y = model[1]([x] if block is Popping else x)
            for _ in range(20):  # what there is to evict, whatever the block needs
                y = y.tanh().exp()
            return y.mean()

        return nn.Sequential(nn.Linear(32, 32), block()), loss

    plain = train(make)
    before = testing.replayed_ops()
    ours = train(make, 0.85, plain.activations)
    assert ours.attempts == 1
    assert_equal(ours, plain)
    assert testing.replayed_ops() > before
