# SPDX-License-Identifier: Apache-2.0
"""MemoryBudget.attach: for training loops that are not one's own."""

import sys

import torch


class Attachment:
    """Of a budget to a model, by hooks of torch.nn.Module; `remove` ends it."""

    def __init__(self, budget, model):
        self._budget, self._forward = budget, None
        self._hooks = [
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def remove(self):
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module, inputs):
        if module.training and torch.is_grad_enabled():
            self._forward = self._budget.forward()
            self._forward.__enter__()

    def _leave(self, module, inputs, output):
        forward, self._forward = self._forward, None
        if forward is not None:
            failed = output is None  # hooks that are always called see an exception so
            forward.__exit__(*(sys.exc_info() if failed else (None, None, None)))


def attach(self, model):
    """Keeps every training forward of `model`, and the backward that follows it, within the budget,
    in a loop that is not one's own: of transformers.Trainer or Lightning, say.

        attachment = budget.attach(model)
        trainer.train()
        attachment.remove()

    As `with budget.forward()` around each call of the model: where memory is short,
    torch.OutOfMemoryError is raised, and the next step evicts more. Each forward must have a backward
    of its own before the next one; calls in eval mode and under no_grad are not touched.
    """
    return Attachment(self, model)
