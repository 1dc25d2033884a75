# SPDX-License-Identifier: Apache-2.0
# Guide 000: BERT with a batch that only recomputation makes room for. Sequences are random.
#
#   fleetrun --nproc_per_node 2 examples/python/bert_recompute.py --layers 24 --width 1024 --batch 53
import argparse

import torch
from transformers import BertConfig, BertForMaskedLM

import fleet

parser = argparse.ArgumentParser()
for flag, default in {"layers": 2, "width": 64, "batch": 8, "length": 32, "updates": 3}.items():
    parser.add_argument(f"--{flag}", type=int, default=default)
configs = parser.parse_args()
fleet.init(is_collective=True)

model = BertForMaskedLM(BertConfig(num_hidden_layers=configs.layers, hidden_size=configs.width,
                                   num_attention_heads=max(configs.width // 64, 1), intermediate_size=4 * configs.width))
for i, layer in enumerate(model.bert.encoder.layer):  # where the net may be cut
    layer.register_forward_hook(lambda _, inputs, out, name=f"layer.{i}": fleet.checkpoint(out, name) if torch.is_tensor(out) else (fleet.checkpoint(out[0], name), *out[1:]))

dist_strategy = fleet.DistributedStrategy()
dist_strategy.recompute = True
dist_strategy.recompute_configs = {"checkpoints": [f"layer.{i}" for i in range(configs.layers)], "enable_offload": False}

optimizer = fleet.optim.Adam(model, lr=1e-4)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)

for _ in range(configs.updates):
    ids = torch.randint(1, 1000, (configs.batch, configs.length))
    report = optimizer.minimize({"input_ids": ids, "labels": ids}, lambda batch: model(**batch).loss)
    fleet.log_step(report)
fleet.shutdown()
