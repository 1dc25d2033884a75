# SPDX-License-Identifier: Apache-2.0
"""Strategies on Python modules: equal to plain loops, and on two ranks to one."""

import collections
import json
import warnings

import pytest
import torch
from torch import nn

import fleet

X = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 4, (24,), generator=torch.Generator().manual_seed(2))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def plain(steps=4):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, X, Y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def train(strategy=None, steps=4, loop=None):
    model = net()
    optimizer = fleet.distributed_optimizer(fleet.optim.Momentum(model, lr=0.1), strategy)
    reports = [
        loop(optimizer, model) if loop else optimizer.minimize({"x": X, "y": Y}, lambda b: loss_of(model, b["x"], b["y"]))
        for _ in range(steps)
    ]
    return [p.detach() for p in model.parameters()], reports


def assert_close(ours, theirs, **tolerance):
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, **tolerance)


def strategy_with(**fields):
    strategy = fleet.DistributedStrategy()
    for name, value in fields.items():
        setattr(strategy, name, value)
    return strategy


def test_minimize_is_a_plain_loop():
    ours, reports = train()
    assert_close(ours, plain())
    assert [r.update for r in reports] == [1, 2, 3, 4]
    assert all(r.updated and r.samples == 24 for r in reports)
    assert reports[-1].loss < reports[0].loss


def test_gradient_merge_is_one_batch():
    ours, reports = train(strategy_with(gradient_merge=True, gradient_merge_configs={"k_steps": 3}))
    assert reports[0].micro_batches == 3
    assert_close(ours, plain())


def test_the_loop_in_ones_own_hands():
    def loop(optimizer, model):
        with optimizer.forward():
            loss = loss_of(model, X, Y)
        optimizer.backward(loss)
        return optimizer.step()

    assert_close(train(loop=loop)[0], plain())


def test_a_closure_without_a_batch():
    ours, _ = train(loop=lambda optimizer, model: optimizer.minimize(lambda: loss_of(model, X, Y)))
    assert_close(ours, plain())


def test_weighted_losses_merge_exactly():
    def loop(optimizer, model):
        return optimizer.minimize((X, Y), lambda b: (nn.functional.cross_entropy(model(b[0]), b[1], reduction="sum"), len(b[1])))

    strategy = strategy_with(gradient_merge=True, gradient_merge_configs={"micro_batch_size": 7})
    assert_close(train(strategy, loop=loop)[0], plain())


def test_a_memory_budget_is_bit_equal():
    ours, reports = train(strategy_with(recompute=True, recompute_configs={"memory_budget": "90% of plain"}))
    theirs, _ = train()
    for a, b in zip(ours, theirs):
        assert torch.equal(a, b)
    assert reports[-1].memory.plain_peak > 0


def test_named_checkpoints():
    class Named(nn.Sequential):
        def forward(self, x):
            for i, layer in enumerate(self):
                x = fleet.checkpoint(layer(x), f"layer.{i}")
            return x

    def run(strategy):
        torch.manual_seed(0)
        model = Named(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
        optimizer = fleet.distributed_optimizer(fleet.optim.Momentum(model, lr=0.1), strategy)
        report = None
        for _ in range(3):
            report = optimizer.minimize({"x": X, "y": Y}, lambda b: loss_of(model, b["x"], b["y"]))
        return [p.detach() for p in model.parameters()], report

    ours, report = run(strategy_with(recompute=True, recompute_configs={"checkpoints": ["layer.1", "layer.3"]}))
    assert report.memory.evicted > 0
    for a, b in zip(ours, run(None)[0]):
        assert torch.equal(a, b)
    with pytest.raises(fleet.UsageError, match="layer.9"):
        run(strategy_with(recompute=True, recompute_configs={"checkpoints": ["layer.9"]}))


def test_amp_trains():
    ours, reports = train(strategy_with(amp=True))
    assert_close(ours, plain(), rtol=0.1, atol=0.02)
    assert reports[-1].loss < reports[0].loss


@pytest.mark.parametrize("make", [fleet.optim.SGD, fleet.optim.Adam, fleet.optim.AdamW, fleet.optim.Lars, fleet.optim.Lamb])
def test_every_optimizer_is_the_same_with_and_without_a_strategy(make):
    a, b = net(), net()
    distributed = fleet.distributed_optimizer(make(a, lr=0.05))
    alone = make(b, lr=0.05)
    for _ in range(4):
        distributed.minimize((X, Y), lambda batch: loss_of(a, *batch))
        alone.zero_grad()
        loss_of(b, X, Y).backward()
        alone.step()
    assert_close(a.parameters(), b.parameters(), rtol=1e-5, atol=1e-6)


def test_a_wrong_key_names_the_nearest():
    with pytest.raises(fleet.UsageError, match="unknown key 'recompute_configs.checkpoint'.*checkpoints"):
        fleet.DistributedStrategy().recompute_configs = {"checkpoint": []}
    with pytest.raises(fleet.UsageError, match="unknown key 'gradient_marge'.*gradient_merge"):
        fleet.DistributedStrategy().gradient_marge = True
    with pytest.raises(fleet.UsageError, match="expected"):
        fleet.DistributedStrategy().amp = "yes"


def test_configs_are_read_and_replaced():
    strategy = strategy_with(localsgd_configs={"k_steps": 4})
    assert strategy.localsgd_configs["k_steps"] == 4
    strategy.localsgd_configs = {"begin_step": 3}
    assert strategy.localsgd_configs["k_steps"] == 1
    assert json.loads(strategy.to_json()) == {"localsgd_configs": {"begin_step": 3}}
    assert strategy.amp is False


def test_conflicts_are_refused():
    with pytest.raises(fleet.UsageError, match="lars"):
        train(strategy_with(lars=True, lamb=True))


def test_an_optimizer_without_its_model_is_refused():
    with pytest.raises(fleet.UsageError, match="not the model") as error:
        fleet.distributed_optimizer(fleet.optim.Adam(net().parameters()))
    assert "fleet.optim.Adam(model" in error.value.fix
    with pytest.raises(fleet.UsageError, match="torch.optim.Adadelta knows its parameters and not the model"):
        fleet.distributed_optimizer(torch.optim.Adadelta(net().parameters()))


def test_unequal_tensors_are_no_batch():
    model = net()
    optimizer = fleet.distributed_optimizer(fleet.optim.SGD(model))
    with pytest.raises(fleet.UsageError, match="24 and 3 samples"):
        optimizer.minimize((X, Y[:3]), lambda b: loss_of(model, *b))
    with pytest.raises(ZeroDivisionError):
        optimizer.minimize((X, Y), lambda b: 1 / 0)


def test_snapshots_resume_bit_for_bit(tmp_path):
    def run(steps, folder):
        model = net()
        optimizer = fleet.distributed_optimizer(fleet.optim.Adam(model, lr=0.01))
        position = fleet.DataPosition()
        snapshots = fleet.Snapshots(optimizer, str(folder), save_every=2, data=position)
        for i in range(position.next_update, steps):
            optimizer.minimize((X, Y), lambda b: loss_of(model, *b))
            position.next_update = i + 1
            snapshots.after_update()
        snapshots.finish()
        return model, snapshots.resumed

    run(4, tmp_path / "a")
    model, resumed = run(8, tmp_path / "a")
    assert resumed == 4
    straight, _ = run(8, tmp_path / "b")
    for a, b in zip(model.parameters(), straight.parameters()):
        assert torch.equal(a, b)


class Scarce(torch.autograd.Function):
    """Its backward asks for more memory than there is, for more than 12 samples."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if len(g) > 12:
            torch.empty(1 << 40)
        return g


def test_out_of_memory_in_a_python_backward_splits_the_batch():
    def loop(optimizer, model):
        return optimizer.minimize((X, Y), lambda b: nn.functional.cross_entropy(Scarce.apply(model(b[0])), b[1]))

    ours, reports = train(strategy_with(recompute=True, recompute_configs={"memory_budget": "1GiB"}), loop=loop)
    assert reports[0].micro_batches == 2
    assert_close(ours, plain())


def test_schedulers_of_torch_set_the_rate():
    def run(wrap):
        model = net()
        optimizer = fleet.optim.Momentum(model, lr=0.1)
        distributed = fleet.distributed_optimizer(optimizer) if wrap else None
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        rates = []
        for _ in range(5):
            if wrap:
                rates.append(distributed.minimize((X, Y), lambda b: loss_of(model, *b)).lr)
            else:
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.zero_grad()
                loss_of(model, X, Y).backward()
                optimizer.step()
            scheduler.step()
        return model, rates

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, rates = run(True)
    theirs, expected = run(False)
    assert rates == expected == [0.1, 0.1, 0.05, 0.05, 0.025]
    assert_close(ours.parameters(), theirs.parameters())


def test_the_rate_is_that_of_whoever_set_it_last():
    model = net()
    optimizer = fleet.optim.SGD(model, lr=0.1)
    distributed = fleet.distributed_optimizer(optimizer)
    distributed.lr = 0.3
    assert optimizer.param_groups[0]["lr"] == 0.3
    optimizer.param_groups[0]["lr"] = 0.2
    assert distributed.lr == 0.2


def test_what_strategies_do_not_follow_is_refused():
    model = net()
    optimizer = fleet.optim.Adam(model)
    distributed = fleet.distributed_optimizer(optimizer)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(fleet.UsageError, match="'weight_decay' of the optimizer's param_groups is 0.5 now"):
        distributed.minimize((X, Y), lambda b: loss_of(model, *b))
    used = fleet.optim.Adam(model)
    loss_of(model, X, Y).backward()
    used.step()
    loaded = fleet.optim.Adam(model)
    loaded.load_state_dict(used.state_dict())
    with pytest.raises(fleet.UsageError, match="has state of its own for 6 parameters"):
        fleet.distributed_optimizer(loaded)


def test_the_strategy_in_force_cannot_be_changed():
    optimizer = fleet.distributed_optimizer(fleet.optim.SGD(net()))
    optimizer.strategy.amp = True
    assert optimizer.strategy.amp is False


def test_batches_may_be_what_a_tokenizer_returns():
    class Encoding(collections.UserDict):
        def __getattr__(self, name):
            return self.data[name] if name != "data" else super().__getattribute__(name)

    def loop(optimizer, model):
        return optimizer.minimize(Encoding(x=X, y=Y), lambda part: loss_of(model, **part) + 0 * part.x.sum())

    ours, reports = train(strategy_with(gradient_merge=True, gradient_merge_configs={"k_steps": 3}), loop=loop)
    assert reports[0].micro_batches == 3
    assert_close(ours, plain())
