# SPDX-License-Identifier: Apache-2.0
"""MemoryBudget.attach: for training loops of other libraries."""

import functools
import types

import torch

from fleet._errors import UsageError


class _Forward:
    """Takes the place of model.forward. Copies of the model have their own, without a budget."""

    def __init__(self, budget, model):
        functools.update_wrapper(self, model.forward)
        self.budget, self.model = budget, model

    def __call__(self, *args, **kwargs):
        if self.budget is None or not (self.model.training and torch.is_grad_enabled()):
            return self.__wrapped__(*args, **kwargs)
        with self.budget.forward():
            return self.__wrapped__(*args, **kwargs)

    def __deepcopy__(self, memo):
        copy = memo.get(id(self.model))
        return types.MethodType(type(self.model).forward, copy) if copy is not None else self

    def __reduce__(self):
        return getattr, (self.model, "forward")


class Attachment:
    """Of a budget to a model. Made by MemoryBudget.attach."""

    def __init__(self, budget, model):
        self._before = vars(model).get("forward")
        self._forward = model.forward = _Forward(budget, model)

    def remove(self):
        """Ends it."""
        model = self._forward.model
        self._forward.budget = None
        if vars(model).get("forward") is not self._forward:
            return  # it has been wrapped since, and is still called
        if self._before is None:
            del model.forward
        else:
            model.forward = self._before


def attach(self, model):
    """Keeps every training forward of `model`, and the backward that follows it, within the budget,
    in a loop of another library: transformers.Trainer or Lightning, say.

        attachment = budget.attach(model)
        trainer.train()
        attachment.remove()

    As `with budget.forward()` around each call of model.forward: where memory is short,
    torch.OutOfMemoryError is raised, and the next step evicts more. A forward may stay without a
    backward; of several before one backward, the last counts. Calls in eval mode and under no_grad are
    not touched.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"[memory] attach() got {type(model).__name__}, and needs the model whose forwards count\n  fix: budget.attach(model)")
    return Attachment(self, model)
