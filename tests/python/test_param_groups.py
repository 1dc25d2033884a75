# SPDX-License-Identifier: Apache-2.0
"""Optimizers of fleet.optim with several param_groups, under strategies: as alone."""

import pytest
import torch
from test_strategy import X, Y, assert_close, loss_of, net, strategy_with

import fleet


def decay_and_not(model, decay="weight_decay", **of_head):
    """The usual recipe: no decay for biases and norms, and a head with a rate of its own."""
    matrices = [p for p in model[:-1].parameters() if p.dim() > 1]
    others = [p for p in model[:-1].parameters() if p.dim() <= 1]
    return [{"params": matrices}, {"params": others, decay: 0.0}, {"params": list(model[-1].parameters()), **of_head}]


KINDS = {
    "SGD": (lambda groups: fleet.optim.SGD(groups, 0.1, weight_decay=0.1), "weight_decay"),
    "Momentum": (lambda groups: fleet.optim.Momentum(groups, 0.1, weight_decay=0.1), "weight_decay"),
    "Adam": (lambda groups: fleet.optim.Adam(groups, 0.01, weight_decay=0.1), "weight_decay"),
    "AdamW": (lambda groups: fleet.optim.AdamW(groups, 0.01, weight_decay=0.1), "weight_decay"),
    "LARS": (lambda groups: fleet.optim.Lars(groups, 0.5, lars_weight_decay=0.1, rule="paper"), "lars_weight_decay"),
    "LAMB": (lambda groups: fleet.optim.Lamb(groups, 0.01, lamb_weight_decay=0.1, rule="paper"), "lamb_weight_decay"),
}


def uneven(optimizer):
    """Moves the rates of the groups by different factors."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 1 / (n + 1), lambda n: 1.0, lambda n: 0.5**n])


def train(name, wrap, steps=5, scheduler=None, strategy=None):
    model = net()
    make, decay = KINDS[name]
    optimizer = make(decay_and_not(model, decay, lr=0.02))
    distributed = fleet.distributed_optimizer(optimizer, strategy, model=model) if wrap else None
    schedule = scheduler(optimizer) if scheduler else None
    for _ in range(steps):
        if wrap:
            distributed.minimize((X, Y), lambda b: loss_of(model, *b))
        else:
            optimizer.zero_grad()
            loss_of(model, X, Y).backward()
            optimizer.step()
        if schedule:
            schedule.step()
    return list(model.parameters()), [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("scheduler", [None, uneven], ids=["", "rates apart"])
@pytest.mark.parametrize("name", KINDS)
def test_groups_have_their_rate_and_decay(name, scheduler):
    ours, rates = train(name, True, scheduler=scheduler)
    theirs, expected = train(name, False, scheduler=scheduler)
    assert rates == expected
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    # And that they matter.
    model = net()
    alike = KINDS[name][0](model.parameters())
    for _ in range(5):
        alike.zero_grad()
        loss_of(model, X, Y).backward()
        alike.step()
    assert (ours[-1] - list(model.parameters())[-1]).abs().max() > 1e-4


def test_a_warm_up_may_begin_at_zero():
    def warm_up(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / 4)

    def run(wrap):
        return train("AdamW", wrap, scheduler=warm_up)

    assert_close(run(True)[0], run(False)[0], rtol=1e-5, atol=1e-6)


def test_a_name_that_is_part_of_another_has_its_own_group():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(16, 8, bias=False)
            self.aa = torch.nn.Linear(8, 4, bias=False)

        def forward(self, x):
            return self.aa(self.a(x))

    model = Net()
    before = [p.clone() for p in model.parameters()]
    optimizer = fleet.optim.SGD([{"params": [model.aa.weight], "lr": 0.1}, {"params": [model.a.weight], "lr": 0.0}])
    fleet.distributed_optimizer(optimizer, model=model).minimize((X, Y), lambda b: loss_of(model, *b))
    assert torch.equal(model.a.weight, before[0])
    assert not torch.equal(model.aa.weight, before[1])


def test_the_rate_moves_all_groups_in_proportion():
    model = net()
    optimizer = fleet.optim.AdamW(decay_and_not(model, lr=0.02), 0.01)
    distributed = fleet.distributed_optimizer(optimizer, model=model)
    distributed.lr = 0.1
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.2]


def test_strategies_over_groups():
    strategy = strategy_with(lars=True)
    model = net()
    groups = decay_and_not(model, lr=0.0)
    before = [p.clone() for p in model[-1].parameters()]
    optimizer = fleet.optim.Momentum(groups, 0.5)
    distributed = fleet.distributed_optimizer(optimizer, strategy, model=model)
    distributed.minimize((X, Y), lambda b: loss_of(model, *b))
    assert torch.equal(model[-1].weight, before[0])
    optimizer.param_groups[2]["lr"] = 0.5
    with pytest.raises(fleet.UsageError, match=r"the rate of param_groups\[2\] is 1 times that of the first now, and was 0 times"):
        distributed.minimize((X, Y), lambda b: loss_of(model, *b))


def test_parameters_without_their_model():
    model = net()
    ours = fleet.distributed_optimizer(fleet.optim.Adam(model.parameters(), 0.01), model=model)
    twin = net()
    theirs = fleet.distributed_optimizer(fleet.optim.Adam(twin, 0.01))
    for optimizer, each in ((ours, model), (theirs, twin)):
        optimizer.minimize((X, Y), lambda b: loss_of(each, *b))
    for a, b in zip(model.parameters(), twin.parameters()):
        assert torch.equal(a, b)


def test_gradients_are_clipped():
    model, twin = net(), net()
    optimizer = fleet.distributed_optimizer(fleet.optim.SGD(model, 0.5), max_grad_norm=0.01)
    assert optimizer.minimize((X, Y), lambda b: loss_of(model, *b)).gradient_norm > 0.01
    loss_of(twin, X, Y).backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
    torch.optim.SGD(twin.parameters(), 0.5).step()
    assert_close(model.parameters(), twin.parameters(), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_refused():
    model = net()
    with pytest.raises(fleet.UsageError, match="(?s)differ in 'lr' and 'weight_decay'.*'betas' is .0.9, 0.999. in group 0 and .0.5, 0.9. in group 1"):
        first, *others = model.parameters()
        fleet.distributed_optimizer(fleet.optim.Adam([{"params": [first]}, {"params": others, "betas": (0.5, 0.9)}]), model=model)
    with pytest.raises(fleet.UsageError, match="'.*' is trained, and in no group"):
        fleet.distributed_optimizer(fleet.optim.Adam(model[0].parameters()), model=model)
    with pytest.raises(fleet.UsageError, match=r"tensor 0 of param_groups\[0\] is no parameter of the model"):
        fleet.distributed_optimizer(fleet.optim.Adam(net().parameters()), model=model)
    with pytest.raises(fleet.UsageError, match="made with one model, and model= is another"):
        fleet.distributed_optimizer(fleet.optim.Adam(net()), model=model)
    optimizer = fleet.optim.Adam(model.parameters())
    distributed = fleet.distributed_optimizer(optimizer, model=model)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    with pytest.raises(fleet.UsageError, match="had 1 param_groups when it was made distributed, and has 2 now"):
        distributed.minimize((X, Y), lambda b: loss_of(model, *b))


def test_rates_of_groups_resume(tmp_path):
    def run(steps, folder):
        model = net()
        optimizer = fleet.optim.AdamW(decay_and_not(model, lr=0.02), 0.01)
        schedule = uneven(optimizer)
        distributed = fleet.distributed_optimizer(optimizer, model=model)
        position = fleet.DataPosition()
        snapshots = fleet.Snapshots(distributed, str(folder), save_every=2, data=position, values={"schedule": schedule})
        for i in range(position.next_update, steps):
            distributed.minimize((X, Y), lambda b: loss_of(model, *b))
            schedule.step()
            position.next_update = i + 1
            snapshots.after_update()
        snapshots.finish()
        return [*model.parameters()], [group["lr"] for group in optimizer.param_groups]

    run(4, tmp_path / "a")
    ours, rates = run(8, tmp_path / "a")
    theirs, expected = run(8, tmp_path / "b")
    assert rates == expected
    for a, b in zip(ours, theirs):
        assert torch.equal(a, b)


def test_a_scheduler_of_one_group_resumes(tmp_path):
    def run(steps, folder):
        model = net()
        optimizer = fleet.optim.Adam(model, 0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        distributed = fleet.distributed_optimizer(optimizer)
        position = fleet.DataPosition()
        snapshots = fleet.Snapshots(distributed, str(folder), save_every=2, data=position, values={"schedule": schedule})
        rate = optimizer.param_groups[0]["lr"]
        for i in range(position.next_update, steps):
            distributed.minimize((X, Y), lambda b: loss_of(model, *b))
            schedule.step()
            position.next_update = i + 1
            snapshots.after_update()
        snapshots.finish()
        return [*model.parameters()], rate

    run(4, tmp_path / "a")
    ours, rate = run(7, tmp_path / "a")
    theirs, _ = run(7, tmp_path / "b")
    assert rate == 0.0025  # at once, not with the next update
    for a, b in zip(ours, theirs):
        assert torch.equal(a, b)
