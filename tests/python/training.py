# SPDX-License-Identifier: Apache-2.0
"""Trains a model plainly and within a budget, and compares both to the last bit."""

import dataclasses
import gc
import random
import re

import numpy
import torch

import fleet
from fleet._C import testing


@dataclasses.dataclass
class Run:
    losses: list
    tensors: list  # parameters and buffers at the end
    activations: int  # bytes above what was live before the first step, the most of all steps
    within: list  # of each step, whether it kept within the budget
    generator: torch.Tensor
    report: object = None
    plan: object = None
    attempts: int = 1


class TooSmall(Exception):
    """`least`: the activations, in bytes, for which the error of a budget asks."""

    def __init__(self, error, least):
        super().__init__(str(error))
        self.least = least


def least_budget(error):
    found = re.search(r"at least ([0-9.]+) ?([KMG]?i?B)", error.fix)
    if not found:
        raise error
    return int(float(found[1]) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[found[2]])


def train(make, share=None, of=None, steps=5, step=None, backward=torch.Tensor.backward):
    """`make()` returns a model and a closure for its loss. With `share`, the budget is what is live
    plus that share of the activations `of` plain training. `step(budget, loss)` runs a step, and
    `backward(loss)` that of plain training."""
    gc.collect()
    counting = testing.Counting()
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(0)
    model, loss_of = make()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    torch.manual_seed(5)
    loss_of(model).backward()  # gradients and state exist from here on
    optimizer.step()
    result = Run([], [], 0, [], None)
    budget, live = None, 0
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        live = live or testing.counted()
        testing.reset_peak()
        if share is None:
            loss = loss_of(model)
            backward(loss)
        else:
            budget = budget or fleet.MemoryBudget(f"{live + int(of * share)}B")
            try:
                loss = (step or default_step)(budget, lambda: loss_of(model))
            except fleet.Error as error:
                raise TooSmall(error, least_budget(error) - live) from None
            result.attempts = max(result.attempts, budget.attempts)
            # What a second try would need of buffers that the forward writes to is copied beyond the budget.
            copies = sum(x.numel() * x.element_size() for x in model.buffers())
            result.within.append(testing.peak() <= live + int(of * share) + copies)
        result.activations = max(result.activations, testing.peak() - live)
        result.losses.append(loss.item())
        del loss
        optimizer.step()
    result.tensors = [x.detach().clone() for x in [*model.parameters(), *model.buffers()]]
    result.generator = torch.get_rng_state()
    if budget:
        result.report, result.plan = budget.report, budget.plan
    del counting
    return result


def default_step(budget, loss):
    return budget.step(loss)


def own_backward(budget, loss):
    with budget.forward():
        value = loss()
    value.backward()
    return value


def assert_equal(ours, plain):
    assert ours.losses == plain.losses
    assert len(ours.tensors) == len(plain.tensors)
    for a, b in zip(ours.tensors, plain.tensors):
        assert a.dtype == b.dtype and torch.equal(bits(a), bits(b))
    assert torch.equal(ours.generator, plain.generator)


def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8)
