# SPDX-License-Identifier: Apache-2.0
"""Optimizers against torch.optim and timm, to rounding."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import fleet


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 200), nn.ReLU(), nn.Linear(200, 10))


X = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def run(model, optimizer, steps=6, scheduler=None):
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return [p.detach() for p in model.parameters()]


def assert_close(ours, theirs, rtol=2e-5, atol=2e-6):
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


PAIRS = {
    "SGD": (lambda p: fleet.optim.SGD(p, 0.05, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.01)),
    "Momentum": (lambda p: fleet.optim.Momentum(p, 0.05, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01)),
    "Nesterov": (lambda p: fleet.optim.Momentum(p, 0.05, use_nesterov=True), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True)),
    "Adam": (lambda p: fleet.optim.Adam(p, 1e-2, weight_decay=0.01), lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.01)),
    "AdamW": (lambda p: fleet.optim.AdamW(p, 1e-2), lambda p: torch.optim.AdamW(p, 1e-2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_is_the_optimizer_of_torch(name):
    ours, theirs = PAIRS[name]
    a, b = net(), net()
    assert_close(run(a, ours(a.parameters())), run(b, theirs(b.parameters())))


@pytest.mark.parametrize("name", PAIRS)
def test_continues_from_the_state_of_torch_and_back(name):
    ours, theirs = PAIRS[name]
    a, b = net(), net()
    first = theirs(b.parameters())
    run(b, first, 3)
    a.load_state_dict(b.state_dict())
    second = ours(a.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert_close(run(a, second, 3), run(b, first, 3))


def test_parameter_groups_and_schedulers_of_torch():
    def train(make):
        model = net()
        optimizer = make([{"params": model[0].parameters(), "lr": 1e-3}, {"params": list(model[4].parameters()) + list(model[6].parameters())}])
        return run(model, optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))

    assert_close(train(lambda g: fleet.optim.AdamW(g, 1e-2)), train(lambda g: torch.optim.AdamW(g, 1e-2)))


@pytest.mark.parametrize("make", [lambda m: fleet.optim.Lars(m, 0.5), lambda m: fleet.optim.Lamb(m, 0.01)], ids=["Lars", "Lamb"])
def test_state_is_saved_and_loaded(make):
    a, b = net(), net()
    first = make(a)
    run(a, first, 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    b.load_state_dict(a.state_dict())
    second = make(b)
    second.load_state_dict(torch.load(file))
    for x, y in zip(run(a, first, 3), run(b, second, 3)):
        assert torch.equal(x, y)


def test_lamb_is_that_of_timm():
    timm = pytest.importorskip("timm.optim")
    a, b = net(), net()
    ours = fleet.optim.Lamb(a.parameters(), 1e-2, lamb_weight_decay=0.01, rule="timm")
    theirs = timm.Lamb(b.parameters(), 1e-2, weight_decay=0.01, max_grad_norm=None)
    assert_close(run(a, ours), run(b, theirs), rtol=1e-4, atol=1e-5)


def test_lars_is_that_of_timm():
    timm = pytest.importorskip("timm.optim")
    a, b = net(), net()
    ours = fleet.optim.Lars(a.parameters(), 0.1, lars_weight_decay=1e-4, epsilon=1e-8, rule="timm")
    theirs = timm.Lars(b.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, trust_coeff=0.001)
    assert_close(run(a, ours), run(b, theirs), rtol=1e-4, atol=1e-5)


def test_biases_and_norms_are_excluded_from_the_ratio():
    model = nn.Linear(4, 4)
    optimizer = fleet.optim.Lars(model, lr=1.0, momentum=0.0, lars_weight_decay=0.0)
    before = model.bias.detach().clone()
    model.weight.grad, model.bias.grad = torch.ones(4, 4), torch.ones(4)
    optimizer.step()
    torch.testing.assert_close(model.bias.detach(), before - 1)


def test_names_leave_parameters_out():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = fleet.optim.Lamb(model, lr=0.1, lamb_weight_decay=0.5, exclude_from_weight_decay=["1.weight"])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert not torch.equal(model[0].weight, before[0])
    assert torch.equal(model[1].weight, before[2])
    with pytest.raises(fleet.Error, match="the parameters have none") as error:
        fleet.optim.Lamb(model.parameters(), exclude_from_weight_decay=["x"])
    assert "named_parameters" in error.value.fix


def test_an_unknown_rule_names_the_nearest():
    with pytest.raises(fleet.Error, match="papers"):
        fleet.optim.Lars(net(), rule="papers")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_parameters(dtype):
    model = nn.Linear(64, 64).to(dtype)
    reference = copy.deepcopy(model).float()
    grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    for m in (model, reference):
        m.weight.grad = grad.to(m.weight.dtype)
    fleet.optim.AdamW([model.weight], 1e-2).step()
    torch.optim.AdamW([reference.weight], 1e-2).step()
    torch.testing.assert_close(model.weight.float(), reference.weight.to(dtype).float(), rtol=1e-2, atol=1e-3)


def test_double_is_refused_in_a_sentence():
    p = nn.Parameter(torch.ones(3, dtype=torch.double))
    p.grad = torch.ones(3, dtype=torch.double)
    with pytest.raises(fleet.Error, match="Double on cpu") as error:
        fleet.optim.SGD([p]).step()
    assert "torch.optim" in error.value.fix


def test_strided_parameters_and_gradients():
    p = nn.Parameter(torch.randn(6, 4).t())
    q = nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format))
    grad = torch.randn(4, 6)
    p.grad, q.grad = grad, grad.clone()
    for x in (p, q):
        fleet.optim.Adam([x], 0.1).step()
    assert torch.equal(p, q)


def test_a_graph_from_before_a_step_is_not_driven_backward():
    w = nn.Parameter(torch.ones(3))
    loss = (w * w).sum()
    w.grad = torch.ones(3)
    fleet.optim.SGD([w]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_closures():
    model = net()
    optimizer = fleet.optim.SGD(model)

    def closure():
        loss = model(X).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).requires_grad


@pytest.mark.parametrize("make", [fleet.optim.Lars, fleet.optim.Lamb])
def test_names_of_the_guide_mean_modules_and_biases(make):
    def excluded_from_decay(**options):
        model = net()
        optimizer = make(model, lr=0.1, **options)
        (group,) = optimizer.param_groups
        return dict(zip(group["param_names"], optimizer._excluded(group, group["params"])))

    flags = excluded_from_decay(exclude_from_weight_decay=["batch_norm", ".b_0"], rule="paper")
    assert {name for name, out in flags.items() if out} == {"1.weight", "1.bias", "4.bias", "6.bias"}
    with pytest.raises(fleet.UsageError, match="'heads' is part of no trainable parameter's name"):
        make(net(), exclude_from_weight_decay=["heads"])
    with pytest.raises(fleet.UsageError, match="'batch_norm'") as error:
        make(net().named_parameters(), exclude_from_weight_decay=["batch_norm"])
    assert "made with the model" in error.value.fix


def test_a_norm_of_two_dimensions_is_a_norm():
    model = nn.Sequential(nn.LayerNorm((4, 4)), nn.Flatten(), nn.Linear(16, 2))
    optimizer = fleet.optim.Lamb(model)
    (group,) = optimizer.param_groups
    assert optimizer._excluded(group, group["params"]) == [True, True, False, True]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copied", "pickled"])
@pytest.mark.parametrize("make", [lambda m: fleet.optim.Lars(m, 0.5), lambda m: fleet.optim.Lamb(m, 0.01), lambda m: fleet.optim.Adam(m)], ids=["Lars", "Lamb", "Adam"])
def test_copies_go_on_as_the_first(make, again):
    model = net()
    optimizer = make(model)
    run(model, optimizer, 2)
    other_model, other = again((model, optimizer))
    assert other.model is other_model
    for a, b in zip(run(model, optimizer, 2), run(other_model, other, 2)):
        assert torch.equal(a, b)
    fresh = again(make(net()))
    fleet.distributed_optimizer(fresh)
