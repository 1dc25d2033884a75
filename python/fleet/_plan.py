# SPDX-License-Identifier: Apache-2.0
"""Plans without running: the model's forward on meta tensors, which have shapes and no numbers."""

from collections.abc import Mapping

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fleet import _C


def _default_loss(output):
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    return sum(x.float().sum() for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad)


def plan(model, inputs, budget, *, loss=None, gflops=200.0, bandwidth=20.0):
    """The plan for one forward and backward of `model` within `budget`, without running it.

    inputs: a dictionary of keyword arguments, a tuple of positional ones, or one tensor.
    budget: "8GiB", "60%" of what this process may have, or "50% of plain".
    loss: makes the loss of the model's output; without it, `output.loss`, or the sum of all outputs.
    gflops, bandwidth (GB/s): the machine's speed, for the predicted times only.

        print(fleet.plan(model, {"input_ids": ids, "labels": ids}, budget="4GiB"))

    Counts parameters, gradients, inputs and activations, and no optimizer state. Raises fleet.Error
    where no plan fits, with the least budget that would do; or where the model needs numbers.
    """
    if isinstance(inputs, Mapping):  # the BatchEncoding of a tokenizer too
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        args, kwargs = tuple(inputs), {}
    else:
        args, kwargs = (inputs,), {}
    make_loss = loss or _default_loss

    def on_meta(x):
        if not isinstance(x, torch.Tensor):
            return x
        y = torch.empty_like(x, device="meta")
        return torch.nn.Parameter(y, x.requires_grad) if isinstance(x, torch.nn.Parameter) else y

    with _C.MetaCounting():
        tensors = {name: on_meta(x) for name, x in [*model.named_parameters(), *model.named_buffers()]}
        for x in tensors.values():
            if x.requires_grad:
                x.grad = torch.empty_like(x)
        args, kwargs = tree_map(on_meta, args), tree_map(on_meta, kwargs)

        def run():
            return make_loss(torch.func.functional_call(model, tensors, args, kwargs))

        return _C.plan_on_meta(run, budget, gflops, bandwidth)
