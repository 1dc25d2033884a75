# SPDX-License-Identifier: Apache-2.0
# Any model of transformers within half of the memory that plain training takes, unmodified.
#
#   python examples/python/finetune_under_a_budget.py
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fleet

model = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=6, n_head=4, n_positions=128, vocab_size=1000))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
budget = fleet.MemoryBudget("50% of plain")

for step in range(6):
    ids = torch.randint(0, 1000, (8, 128))
    loss = budget.step(lambda: model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss:.4f}, {budget.report}")
print(budget.plan)
