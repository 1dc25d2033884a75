# SPDX-License-Identifier: Apache-2.0
"""The memory budget on models of torch.nn: equal to plain training, within the budget."""

import random

import numpy
import pytest
import torch
from torch import nn

import fleet
from fleet._C import testing
from training import assert_equal, own_backward, train


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    x = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(1))
    return nn.TransformerEncoder(layer, 6), lambda model: model(x).square().mean()


def convolutions():
    def block(a, b):
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]

    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    layers = [y for a, b in [(3, 16), (16, 16), (16, 16), (16, 16), (16, 16)] for y in block(a, b)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return net, lambda model: model(x).square().mean()


def recurrent():
    x = torch.randn(16, 40, 32, generator=torch.Generator().manual_seed(1))
    return nn.LSTM(32, 64, 2, batch_first=True, dropout=0.1), lambda model: model(x)[0].square().mean()


# Each layer of an LSTM is one op (oneDNN), whose backward needs all of its workspace.
@pytest.mark.parametrize("make, share", [(encoder, 0.5), (encoder, 0.3), (convolutions, 0.5), (convolutions, 0.45), (recurrent, 0.7)])
@pytest.mark.parametrize("step", [None, own_backward], ids=["step", "forward"])
def test_is_plain_training_bit_for_bit_within_the_budget(make, share, step):
    plain = train(make)
    before = testing.replayed_ops()
    ours = train(make, share, plain.activations, step=step)
    assert testing.replayed_ops() > before
    assert ours.activations <= share * plain.activations
    assert_equal(ours, plain)


def two_backwards(loss):
    loss.backward(retain_graph=True)
    (2 * loss).backward()


@pytest.mark.parametrize("share", [0.7, 0.5, 0.33])
def test_a_graph_that_is_kept_stays_within_the_budget(share):
    def step(budget, loss):
        with budget.forward():
            value = loss()
        two_backwards(value)
        return value

    plain = train(encoder, backward=two_backwards)
    ours = train(encoder, share, plain.activations, step=step)
    assert all(ours.within)
    assert ours.report.evicted > 0 and ours.report.measured_peak <= ours.report.budget
    assert_equal(ours, plain)


def test_a_plan_is_followed_from_the_third_step_on_and_shown():
    plain = train(encoder)
    ours = train(encoder, 0.4, plain.activations)
    report = ours.report
    assert report.predicted_peak > 0
    assert abs(report.measured_peak - report.predicted_peak) < 0.02 * report.predicted_peak
    assert report.measured_peak <= report.budget
    assert report.plain_peak > report.budget
    assert "recomputed" in str(ours.plan)
    picture = ours.plan._repr_html_()
    assert picture.startswith("<svg") and "planned" in picture
    assert ours.plan.predicted_peak <= ours.plan.budget


def test_offload_is_plain_training():
    plain = train(encoder)

    def with_file(budget, loss):
        return loss_budget.step(loss)

    loss_budget = fleet.MemoryBudget("50% of plain", offload=True)
    ours = train(encoder, 0.5, plain.activations, step=with_file)
    assert_equal(ours, plain)


def test_half_of_plain_is_known_after_two_steps():
    model, loss_of = encoder()
    budget = fleet.MemoryBudget("50% of plain")
    assert budget.plan is None
    for _ in range(4):
        budget.step(lambda: loss_of(model))
    report = budget.report
    assert report.measured_peak <= report.budget == pytest.approx(report.plain_peak / 2, rel=0.01)


def test_counts_parameters_that_were_there_before():
    model = nn.Linear(1024, 1024)
    budget = fleet.MemoryBudget("1GiB")
    budget.step(lambda: model(torch.ones(1, 1024)).sum())
    assert budget.report.now >= 2 * 4 * 1024 * 1024  # and their gradients


def test_frozen_parameters_count_too():
    model = nn.Sequential(nn.Linear(1024, 1024).requires_grad_(False), nn.Linear(1024, 1))
    budget = fleet.MemoryBudget("1GiB")
    budget.step(lambda: model(torch.ones(1, 1024)).sum())
    assert budget.report.now >= 4 * 1024 * 1024


class Moody(nn.Module):
    """Asks for more memory than there is in its first calls, after it has changed its state."""

    def __init__(self, failures):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.linear = nn.Linear(64, 64)
        self.failures = failures
        self.drawn = []

    def forward(self, x):
        y = self.linear(nn.functional.dropout(self.norm(x)))
        self.drawn.append((random.random(), numpy.random.rand()))
        if self.failures > 0:
            self.failures -= 1
            torch.empty(1 << 40)
        return y.square().mean()


def test_a_second_try_starts_from_the_state_before_the_first():
    x = torch.randn(32, 64)

    def run(failures):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        model = Moody(failures)
        model.linear.weight.grad = torch.ones(64, 64)
        budget = fleet.MemoryBudget("1GiB")
        loss = budget.step(lambda: model(x))
        return loss, model.norm.running_mean, model.norm.num_batches_tracked, model.linear.weight.grad, torch.rand(3), model, budget

    *plain, model, _ = run(0)
    *ours, again, budget = run(1)
    assert budget.attempts == 2
    assert again.drawn == [model.drawn[0]] * 2
    for a, b in zip(ours, plain):
        assert torch.equal(a, b)


def test_a_backward_that_fails_half_way_adds_its_gradients_once():
    class Once(torch.autograd.Function):
        fails = True

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if Once.fails:
                Once.fails = False
                torch.empty(1 << 40)
            return g

    first, last = nn.Linear(8, 8), nn.Linear(8, 8)
    x = torch.randn(4, 8)

    def loss():
        return last(Once.apply(first(x))).square().mean()

    Once.fails = False
    loss().backward()
    expected = [2 * p.grad for p in [*first.parameters(), *last.parameters()]]
    Once.fails = True
    budget = fleet.MemoryBudget("1GiB")
    budget.step(loss)
    assert budget.attempts == 2
    for p, e in zip([*first.parameters(), *last.parameters()], expected):
        assert torch.equal(p.grad, e)


def test_a_budget_that_is_too_small_says_what_would_do():
    model, loss_of = encoder()
    with pytest.raises(fleet.Error, match="budget") as error:
        budget = fleet.MemoryBudget("1MiB")
        budget.step(lambda: loss_of(model))
    assert error.value.fix
    assert isinstance(error.value, RuntimeError)


@pytest.mark.parametrize("text", ["much", "-1GiB", "0", "150%"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(fleet.UsageError, match="is no amount of memory") as error:
        fleet.MemoryBudget(text)
    assert "8GiB" in error.value.fix


def test_a_few_bytes_were_meant_in_another_unit():
    with pytest.raises(fleet.UsageError, match="'60' is no amount of memory") as error:
        fleet.MemoryBudget("60")
    assert "60%" in error.value.fix and "60MiB" in error.value.fix


def test_a_closure_without_a_tensor_is_refused():
    with pytest.raises(fleet.UsageError, match="returned NoneType"):
        fleet.MemoryBudget("1GiB").step(lambda: None)


def test_exceptions_of_the_closure_come_through():
    budget = fleet.MemoryBudget("1GiB")
    with pytest.raises(KeyError, match="mine"):
        budget.step(lambda: {}["mine"])
    with pytest.raises(KeyboardInterrupt):
        budget.step(interrupted)
    x = torch.ones(3, requires_grad=True)
    assert budget.step(lambda: (x * 2).sum()).item() == 6  # goes on after these


def interrupted():
    raise KeyboardInterrupt


def test_a_failed_forward_leaves_nothing():
    budget = fleet.MemoryBudget("1GiB")
    x = torch.ones(1 << 16, requires_grad=True)
    budget.step(lambda: (x * 2).exp().sum())
    live = testing.counted()

    def fails():
        y = (x * 2).exp()
        raise ValueError(y.shape)

    for _ in range(3):
        with pytest.raises(ValueError):
            budget.step(fails)
        with pytest.raises(ValueError), budget.forward():
            fails()
    assert testing.counted() == live


def test_recompute_and_checkpoint():
    block = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64))
    x = torch.randn(32, 64, requires_grad=True)

    def gradients(call):
        torch.manual_seed(3)
        block.zero_grad()
        x.grad = None
        fleet.checkpoint(call(x), "here").square().sum().backward()
        return [x.grad, *(p.grad for p in block.parameters())]

    before = testing.replayed_ops()
    ours = gradients(lambda x: fleet.recompute(block, x))
    assert testing.replayed_ops() > before
    for a, b in zip(ours, gradients(block)):
        assert torch.equal(a, b)


def test_a_backward_inside_the_block_is_plain_training():
    def inside(budget, loss):
        with budget.forward():
            value = loss()
            value.backward()
        return value

    plain = train(encoder)
    ours = train(encoder, 0.5, plain.activations, step=inside)
    assert ours.activations <= 0.5 * plain.activations
    assert_equal(ours, plain)


def test_plans_without_running():
    model, _ = encoder()
    x = torch.empty(8, 64, 64)
    plan = fleet.plan(model, x, budget="60% of plain")
    assert plan.predicted_peak <= plan.budget < plan.plain_peak
    with pytest.raises(fleet.Error, match="no plan holds this step") as error:
        fleet.plan(model, x, budget="1MiB")
    assert "give it" in error.value.fix


def test_plans_of_a_language_model_for_what_a_tokenizer_returns():
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=500))
    ids = torch.randint(0, 500, (8, 64))
    batch = {"input_ids": ids, "labels": ids}
    plan = fleet.plan(model, batch, budget="70% of plain")
    assert plan.predicted_peak <= plan.budget < plan.plain_peak
    same = fleet.plan(model, transformers.BatchEncoding(batch), budget="70% of plain")
    assert same.predicted_peak == plan.predicted_peak


def test_what_is_no_budget_says_what_to_write():
    for wrong in (8, 0.6, None, True):
        with pytest.raises(fleet.UsageError, match="the budget is") as error:
            fleet.MemoryBudget(wrong)
        assert '"8GiB"' in error.value.fix
        with pytest.raises(fleet.UsageError, match="the budget is"):
            fleet.plan(torch.nn.Linear(2, 2), torch.ones(1, 2), budget=wrong)
    assert fleet.MemoryBudget(1 << 30).step(lambda: torch.ones(2, requires_grad=True).sum()) == 2


def test_a_loss_in_place_of_a_function_says_what_to_write():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(fleet.UsageError, match=r"step\(\) got Tensor, and needs a function") as error:
        fleet.MemoryBudget("1GiB").step(model(torch.ones(1, 2)).sum())
    assert "lambda" in error.value.fix
    optimizer = fleet.distributed_optimizer(fleet.optim.SGD(model))
    for arguments in ((model(torch.ones(1, 2)).sum(),), (torch.ones(1, 2), model(torch.ones(1, 2)).sum())):
        with pytest.raises(fleet.UsageError, match=r"minimize\(\) got Tensor for a loss") as error:
            optimizer.minimize(*arguments)
        assert "lambda" in error.value.fix
