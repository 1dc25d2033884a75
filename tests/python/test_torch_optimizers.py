# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch.optim, and of users, under strategies: as in a plain loop."""

import pytest
import torch
from programs import run_ranks
from test_strategy import X, Y, assert_close, loss_of, net, strategy_with
from torch import nn

import fleet


class Sign(torch.optim.Optimizer):
    """A user's own: p -= lr * sign(average of gradients)."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr))
        self.seen = []

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                average = state.setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 0.5)
                p.sub_(average.sign(), alpha=group["lr"])


KINDS = {
    "SGD": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9),
    "RMSprop": lambda params: torch.optim.RMSprop(params, 0.01, momentum=0.5, centered=True),
    "AdamW": lambda params: torch.optim.AdamW(params, 0.01, amsgrad=True),
    "AdamW, fused": lambda params: torch.optim.AdamW(params, 0.01, fused=True),
    "Adafactor": lambda params: torch.optim.Adafactor(params, 0.01),
    "a user's": Sign,
}


def train(make, strategy=None, steps=5, scheduler=None, **options):
    model = net()
    inner = make(model.parameters())
    optimizer = fleet.distributed_optimizer(inner, strategy, model=model, **options)
    schedule = scheduler(inner) if scheduler else None
    reports = []
    for _ in range(steps):
        reports.append(optimizer.minimize((X, Y), lambda b: loss_of(model, *b)))
        if schedule:
            schedule.step()
    return [p.detach() for p in model.parameters()], reports


def plain(make, steps=5, scheduler=None, max_grad_norm=0, autocast=False):
    model = net()
    optimizer = make(model.parameters())
    schedule = scheduler(optimizer) if scheduler else None
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, X, Y)
        loss.backward()
        if max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        if schedule:
            schedule.step()
    return [p.detach() for p in model.parameters()]


def assert_bits(ours, theirs):
    for a, b in zip(ours, theirs):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", KINDS)
def test_steps_as_in_a_plain_loop_bit_for_bit(name):
    ours, reports = train(KINDS[name])
    assert_bits(ours, plain(KINDS[name]))
    assert [r.update for r in reports] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", KINDS)
def test_merged_micro_batches_are_one_batch(name):
    ours, reports = train(KINDS[name], strategy_with(gradient_merge=True, gradient_merge_configs={"k_steps": 3}))
    assert reports[0].micro_batches == 3
    # To rounding; where an update is the sign of an average, that of elements near 0 may differ.
    assert_close(ours, plain(KINDS[name]), rtol=1e-3, atol=2e-3 if name == "AdamW" else 1e-3)


def test_gradients_are_clipped_before_the_step():
    ours, _ = train(KINDS["RMSprop"], max_grad_norm=0.1)
    assert_close(ours, plain(KINDS["RMSprop"], max_grad_norm=0.1), rtol=1e-5, atol=1e-6)
    assert not torch.equal(ours[0], plain(KINDS["RMSprop"])[0])


def test_masters_of_bf16_parameters_take_their_place():
    model = net()
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = fleet.distributed_optimizer(inner, strategy_with(amp=True, amp_configs={"use_pure_bf16": True}), model=model)
    losses = [optimizer.minimize((X, Y), lambda b: loss_of(model, *b)).loss for _ in range(5)]
    masters = inner.param_groups[0]["params"]
    assert losses[-1] < losses[0]
    assert model[0].weight.dtype == torch.bfloat16 and masters[0].dtype == torch.float32
    assert torch.equal(masters[0].bfloat16(), model[0].weight)
    assert set(inner.state) == set(masters)  # no state is left under the parameters


def test_schedulers_and_groups_are_its_own():
    def make(params):
        params = list(params)
        return torch.optim.AdamW([{"params": params[:2], "lr": 0.02}, {"params": params[2:], "weight_decay": 0.3}], 0.01)

    def scheduler(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 1 / (n + 1), lambda n: 0.5**n])

    ours, reports = train(make, scheduler=scheduler)
    assert_bits(ours, plain(make, scheduler=scheduler))
    assert [round(r.lr, 6) for r in reports] == [0.02, 0.01, 0.006667, 0.005, 0.004]


def test_its_options_may_change_at_any_time():
    model, twin = net(), net()
    inner, alone = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin))
    optimizer = fleet.distributed_optimizer(inner, model=model)
    for momentum in (0.0, 0.9):
        for each in (inner, alone):
            each.param_groups[0]["weight_decay"] = momentum
        optimizer.minimize((X, Y), lambda b: loss_of(model, *b))
        alone.zero_grad()
        loss_of(twin, X, Y).backward()
        alone.step()
    assert_bits(model.parameters(), twin.parameters())
    optimizer.lr = 0.5
    assert inner.param_groups[0]["lr"] == 0.5 == optimizer.lr


def test_a_rate_that_is_a_tensor_stays_that_tensor():
    model = net()
    rate = torch.tensor(0.1)
    inner = torch.optim.Adam(model.parameters(), rate)
    optimizer = fleet.distributed_optimizer(inner, model=model)
    optimizer.lr = 0.25
    assert inner.param_groups[0]["lr"] is rate and rate.item() == 0.25 == optimizer.lr


def test_parameters_that_it_does_not_have_are_left_alone():
    model = net()
    head = [p.clone() for p in model[0].parameters()]
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model[-1].parameters(), 0.1), model=model)
    optimizer.minimize((X, Y), lambda b: loss_of(model, *b))
    assert_bits(model[0].parameters(), head)


def test_its_exceptions_come_out():
    class Fails(Sign):
        def step(self, closure=None):
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        train(Fails)


def test_what_cannot_be_is_refused():
    with pytest.raises(fleet.UsageError, match="lars is built on Momentum, but the optimizer is torch.optim.RMSprop"):
        train(KINDS["RMSprop"], strategy_with(lars=True))
    with pytest.raises(fleet.UsageError, match="lamb is built on Adam.*, but the optimizer is Sign"):
        train(Sign, strategy_with(lamb=True))
    with pytest.raises(fleet.UsageError, match="torch.optim.LBFGS evaluates its closure many times"):
        train(torch.optim.LBFGS)
    with pytest.raises(fleet.UsageError, match="torch.optim.Adadelta knows its parameters and not the model") as error:
        fleet.distributed_optimizer(torch.optim.Adadelta(net().parameters()))
    assert "model=model" in error.value.fix
    with pytest.raises(fleet.UsageError, match="str is no optimizer"):
        fleet.distributed_optimizer("adam", model=net())
    with pytest.raises(fleet.UsageError, match="Sequential is no optimizer"):
        fleet.distributed_optimizer(net())  # C++ has the model first
    with pytest.raises(fleet.UsageError, match="got dict for a strategy"):
        fleet.distributed_optimizer(fleet.optim.SGD(net()), {"amp": True})
    with pytest.raises(fleet.Error, match="tensor 0 of parameter group 0 of torch.optim.SGD is no parameter of the model"):
        fleet.distributed_optimizer(torch.optim.SGD(net().parameters(), 0.1), model=net())

    class Closure(Sign):
        def step(self, closure):
            pass

    with pytest.raises(fleet.UsageError, match="Closure evaluates its closure"):
        train(Closure)

    class Replaces(Sign):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.data = p - 0.1

    with pytest.raises(fleet.Error, match="Replaces replaced the data of '0.weight'"):
        train(Replaces)


def saved(make, folder, steps, scheduler=None):
    model = net()
    inner = make(model.parameters())
    schedule = scheduler(inner) if scheduler else None
    optimizer = fleet.distributed_optimizer(inner, model=model)
    position = fleet.DataPosition()
    snapshots = fleet.Snapshots(optimizer, str(folder), save_every=2, data=position, values={"scheduler": schedule} if schedule else None)
    for i in range(position.next_update, steps):
        optimizer.minimize((X, Y), lambda b: loss_of(model, *b))
        if schedule:
            schedule.step()
        position.next_update = i + 1
        snapshots.after_update()
    snapshots.finish()
    return model, snapshots.resumed


@pytest.mark.parametrize("name", KINDS)
def test_resumed_is_never_stopped(tmp_path, name):
    saved(KINDS[name], tmp_path / "a", 4)
    model, resumed = saved(KINDS[name], tmp_path / "a", 7)
    assert resumed == 4
    assert_bits(model.parameters(), plain(KINDS[name], steps=7))


def test_a_scheduler_resumes(tmp_path):
    def scheduler(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7, eta_min=1e-4)

    saved(KINDS["AdamW"], tmp_path / "a", 4, scheduler)
    model, resumed = saved(KINDS["AdamW"], tmp_path / "a", 7, scheduler)
    assert resumed == 4
    assert_bits(model.parameters(), plain(KINDS["AdamW"], steps=7, scheduler=scheduler))


def test_another_optimizer_does_not_take_its_state(tmp_path):
    saved(KINDS["AdamW"], tmp_path / "a", 2)
    with pytest.raises(fleet.UsageError, match="torch.optim.AdamW.*torch.optim.RMSprop"):
        saved(KINDS["RMSprop"], tmp_path / "a", 4)


def test_state_that_a_snapshot_could_not_read_is_refused(tmp_path):
    class Holds(Sign):
        def state_dict(self):
            return {**super().state_dict(), "program": Sign}

    with pytest.raises(fleet.UsageError, match="the state of 'Holds' holds more than tensors"):
        saved(Holds, tmp_path / "a", 2)


TRAIN = """
import sys, torch, fleet
from torch import nn
fleet.init(is_collective=True)
torch.manual_seed(0)
x = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
y = torch.randint(0, 4, (24,), generator=torch.Generator().manual_seed(2))
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))
inner = torch.optim.RMSprop(model.parameters(), 0.01, momentum=0.5)
optimizer = fleet.distributed_optimizer(inner, fleet.DistributedStrategy.load(sys.argv[1]), model=model)
rank, ranks = fleet.worker_index(), fleet.worker_num()
part = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
for _ in range(4):
    optimizer.minimize((x[part], y[part]), lambda b: nn.functional.cross_entropy(model(b[0]), b[1]))
optimizer.end_epoch()
if fleet.is_first_worker():
    torch.save(list(model.state_dict().values()), sys.argv[2])
fleet.shutdown()
"""


@pytest.mark.parametrize("fields", [{}, dict(gradient_merge=True, gradient_merge_configs={"k_steps": 3})], ids=["data parallel", "gradient merge"])
def test_two_ranks_are_one(tmp_path, fields):
    strategy_with(**fields).save(str(tmp_path / "strategy.json"))
    (tmp_path / "train.py").write_text(TRAIN)
    results = []
    for ranks in (1, 2):
        run_ranks(tmp_path, tmp_path / "train.py", "strategy.json", f"{ranks}.pt", ranks=ranks)
        results.append(torch.load(tmp_path / f"{ranks}.pt"))
    assert_close(*results, rtol=1e-4, atol=1e-5)


def test_local_sgd_averages_its_parameters(tmp_path):
    strategy_with(localsgd=True, localsgd_configs={"k_steps": 2}).save(str(tmp_path / "strategy.json"))
    (tmp_path / "train.py").write_text(TRAIN)
    run_ranks(tmp_path, tmp_path / "train.py", "strategy.json", "2.pt")
    assert all(torch.isfinite(p).all() for p in torch.load(tmp_path / "2.pt"))
