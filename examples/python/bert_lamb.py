# SPDX-License-Identifier: Apache-2.0
# Guide 003: LAMB for large batches of BERT. Sequences are random.
#
#   fleetrun --nproc_per_node 2 examples/python/bert_lamb.py
import torch
from transformers import BertConfig, BertForMaskedLM

import fleet

fleet.init(is_collective=True)
model = BertForMaskedLM(BertConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=256))

dist_strategy = fleet.DistributedStrategy()
dist_strategy.lamb = True
dist_strategy.lamb_configs = {"lamb_weight_decay": 0.01, "exclude_from_weight_decay": ["layer_norm", ".b_0"]}

optimizer = fleet.optim.Adam(model, lr=0.01)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)

for _ in range(3):
    ids = torch.randint(1, 1000, (8, 32))
    report = optimizer.minimize({"input_ids": ids, "labels": ids}, lambda batch: model(**batch).loss)
    fleet.log_step(report)
fleet.shutdown()
