# SPDX-License-Identifier: Apache-2.0
"""A budget around a forward of the program's own: `budget.forward()`, and `attach`."""

import copy
import pickle

import pytest
import torch
from torch import nn

import fleet
from fleet._C import testing


def test_budgets_with_interleaved_forwards_end_with_their_own_backward():
    def nets():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def train(first, second):
        a, b = nets()
        x = torch.randn(512, 64, generator=torch.Generator().manual_seed(1))
        for _ in range(5):
            with first() as _:
                loss_a = a(x).tanh().exp().square().mean()
            with second() as _:
                loss_b = b(x).sigmoid().exp().square().mean()
            loss_b.backward()
            between = [budget.report.measured_peak for budget in budgets]
            loss_a.backward()
            yield between
        yield [p.grad for net in (a, b) for p in net.parameters()]

    budgets = []
    *_, plain = train(torch.enable_grad, torch.enable_grad)
    budgets = [fleet.MemoryBudget("1GiB"), fleet.MemoryBudget("1GiB")]
    *steps, ours = train(budgets[0].forward, budgets[1].forward)
    assert steps[0][0] == 0 and steps[0][1] > 0  # after the second's backward the first has not ended
    assert all(torch.equal(a, b) for a, b in zip(ours, plain))
    for budget in budgets:
        assert budget.report.predicted_peak > 0 or budget.report.plain_peak > 0


def hog(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8)


@pytest.mark.parametrize("ends", ["kept", "dropped"])
def test_a_forward_without_a_backward_limits_nothing_afterwards(ends):
    model = nn.Linear(64, 64)
    budget = fleet.MemoryBudget("8MiB")
    for _ in range(3):
        with budget.forward():
            loss = model(torch.ones(16, 64)).exp().sum()
        if ends == "dropped":
            del loss
        hog(64)  # an evaluation, say
    with budget.forward():
        with pytest.raises(torch.OutOfMemoryError):
            hog(64)
        loss = model(torch.ones(16, 64)).exp().sum()
    loss.backward()
    assert 0 < budget.report.measured_peak <= 8 << 20


def test_the_budget_holds_in_the_backward_that_follows_a_forward():
    class Hog(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            hog(64)
            return g

    x = torch.ones(16, requires_grad=True)
    budget = fleet.MemoryBudget("8MiB")
    with budget.forward():
        loss = Hog.apply(x.exp()).exp().sum()
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()
    hog(64)


class Short(nn.Module):
    """Takes more memory than there is when it is told to."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.is_short = False

    def forward(self, x):
        y = self.linear(x).tanh()
        if self.is_short:
            self.is_short = False
            torch.empty(1 << 40)
        return y.square().mean()


@pytest.mark.parametrize("way", ["forward", "attach"])
def test_out_of_memory_in_a_forward_of_ones_own_and_recovery(way):
    def steps(budget):
        torch.manual_seed(0)
        model, x = Short(), torch.randn(32, 64)
        attachment = budget.attach(model) if budget and way == "attach" else None
        for step in range(5):
            model.is_short = budget is not None and step == 2
            while True:
                try:
                    if budget and way == "forward":
                        with budget.forward():
                            loss = model(x)
                    else:
                        loss = model(x)
                    break
                except torch.OutOfMemoryError:
                    assert step == 2
            loss.backward()
        if attachment:
            attachment.remove()
            assert "forward" not in vars(model)
        return [loss.detach(), *(p.grad for p in model.parameters())]

    budget = fleet.MemoryBudget("1GiB")
    for a, b in zip(steps(budget), steps(None)):
        assert torch.equal(a, b)
    assert budget.report.measured_peak > 0


def test_an_attached_model_may_return_nothing():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(256, 256)

        def forward(self, x):
            self.loss = self.linear(x).exp().mean()

    model = Returns()
    budget = fleet.MemoryBudget("1GiB")
    budget.attach(model)
    for _ in range(3):
        model(torch.ones(4, 256))
        model.loss.backward()
    assert budget.report.plain_peak > 0  # its steps were measured


def test_control_c_in_an_attached_forward_ends_the_recording():
    class Stops(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = Stops()
    budget = fleet.MemoryBudget("8MiB")
    budget.attach(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(4))
    hog(64)
    x = torch.ones(1 << 16, requires_grad=True)
    before = testing.replayed_ops()
    x.exp().sin().sum().backward()
    assert testing.replayed_ops() == before


def test_a_copy_of_an_attached_model_has_no_budget():
    model = nn.Linear(4, 4)
    attachment = fleet.MemoryBudget("8MiB").attach(model)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.weight), nn.init.zeros_(other.bias)
    assert torch.equal(other(torch.ones(1, 4)), torch.zeros(1, 4))
    again = pickle.loads(pickle.dumps(model))
    nn.init.zeros_(again.weight), nn.init.zeros_(again.bias)
    assert torch.equal(again(torch.ones(1, 4)), torch.zeros(1, 4))
    attachment.remove()
    assert "forward" not in vars(model)


def test_attach_needs_a_model():
    with pytest.raises(fleet.UsageError, match=r"attach\(\) got str"):
        fleet.MemoryBudget("1GiB").attach("model")
