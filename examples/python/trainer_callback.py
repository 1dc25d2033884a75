# SPDX-License-Identifier: Apache-2.0
# transformers.Trainer within a memory budget: its training step runs inside `budget.step`.
#
#   python examples/python/trainer_callback.py
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import fleet


class BudgetTrainer(Trainer):
    """Forward and backward of each step within `budget`."""

    budget = fleet.MemoryBudget("60% of plain")

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        return self.budget.step(lambda: self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch))


if __name__ == "__main__":
    model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=4, n_head=4, n_positions=64, vocab_size=500))
    ids = torch.randint(0, 500, (64, 64))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments("build/trainer", max_steps=5, per_device_train_batch_size=8, report_to=[], use_cpu=True, save_strategy="no")
    trainer = BudgetTrainer(model, arguments, train_dataset=data, optimizers=(fleet.optim.AdamW(model, 1e-3), None))
    print(trainer.train().training_loss, BudgetTrainer.budget.report)
