# SPDX-License-Identifier: Apache-2.0
"""Hooks of saved tensors, and what is built on them (checkpoint, save_on_cpu), inside and beside a budget."""

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import fleet
from blocks import Blocks, data
from fleet._C import testing
from training import assert_equal, train


def with_hooks(block, x):
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return block(x)


def test_hooks_of_the_user_inside_a_budget_are_called():
    packed, unpacked = [], []

    def around(block, x):
        with saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: unpacked.append(t.shape) or t):
            return block(x)

    model = Blocks(around, depth=2)
    budget = fleet.MemoryBudget("1GiB")
    budget.step(lambda: model(data(16, 64)))
    assert len(packed) == len(unpacked) > 0


def test_hooks_beside_a_budget_are_called_and_end():
    budget = fleet.MemoryBudget("1GiB")
    x = data(16, 64).requires_grad_()
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        (x * x).sum().backward()
    assert len(seen) == 2
    budget.step(lambda: (x * x).sum())
    assert len(seen) == 2


def test_hooks_around_a_backward_do_not_see_replays():
    packed = []
    budget = fleet.MemoryBudget("1GiB")
    with budget.forward():
        x = data(64, 64).requires_grad_()
        loss = fleet.recompute(lambda: (x.sin() * 2).exp().sum())
    before = testing.replayed_ops()
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        loss.backward()
    assert testing.replayed_ops() > before
    assert not packed
    assert torch.equal(x.grad, torch.autograd.grad((x.sin() * 2).exp().sum(), x)[0])


def around_checkpoint(reentrant):
    return lambda block, x: checkpoint(block, x, use_reentrant=reentrant)


def around_save_on_cpu(block, x):
    with save_on_cpu():
        return block(x)


@pytest.mark.parametrize("around", [around_checkpoint(False), around_save_on_cpu, with_hooks], ids=["checkpoint", "save_on_cpu", "hooks"])
def test_works_inside_a_budget(around):
    x = data(256, 64)

    def make():
        class Half(Blocks):
            def forward(self, y):
                for i, block in enumerate(self.blocks):
                    y = y + (around(block, y) if i % 2 else block(y))
                return y.square().mean()

        return Half(depth=6), lambda model: model(x)

    plain = train(make)
    ours = train(make, 0.75, plain.activations)
    assert_equal(ours, plain)
    assert ours.activations <= 0.75 * plain.activations


def test_reentrant_checkpoint_works_inside_a_budget():
    x = data(256, 64).requires_grad_()

    def make():
        return Blocks(around_checkpoint(True)), lambda model: model(x)

    plain = train(make)
    ours = train(make, 1.0, plain.activations + (1 << 20))
    assert_equal(ours, plain)


def test_checkpoint_beside_a_budget():
    budget = fleet.MemoryBudget("1GiB")
    net = Blocks(around_checkpoint(False), depth=2)
    plain = Blocks(depth=2)
    plain.load_state_dict(net.state_dict())
    for model in (net, plain):
        torch.manual_seed(2)
        model(data(16, 64)).backward()
    for a, b in zip(net.parameters(), plain.parameters()):
        assert torch.equal(a.grad, b.grad)
    del budget
