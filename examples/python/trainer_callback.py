# SPDX-License-Identifier: Apache-2.0
# transformers.Trainer within a memory budget, by a callback; the optimizer is Fleet's.
#
#   python examples/python/trainer_callback.py
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import fleet


class BudgetCallback(TrainerCallback):
    """Forward and backward of each training step within `budget`."""

    def __init__(self, budget):
        self.budget = budget

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.attachment = self.budget.attach(model)

    def on_train_end(self, args, state, control, **kwargs):
        self.attachment.remove()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=6, n_head=4, n_positions=64, vocab_size=500))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 500, (64, 64))]
    arguments = TrainingArguments("build/trainer", max_steps=6, per_device_train_batch_size=8, report_to=[], use_cpu=True, save_strategy="no")
    budget = fleet.MemoryBudget("60% of plain")
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[BudgetCallback(budget)], optimizers=(fleet.optim.AdamW(model, 1e-3), None))
    print(f"loss {trainer.train().training_loss:.4f}, {budget.report}")
