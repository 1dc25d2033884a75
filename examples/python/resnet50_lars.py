# SPDX-License-Identifier: Apache-2.0
# Guide 003: LARS for large batches of ResNet50. Images are random.
#
#   fleetrun --nproc_per_node 2 examples/python/resnet50_lars.py
import torch
import torchvision

import fleet

fleet.init(is_collective=True)
model = torchvision.models.resnet50(num_classes=10)

dist_strategy = fleet.DistributedStrategy()
dist_strategy.lars = True
dist_strategy.lars_configs = {"lars_coeff": 0.001, "lars_weight_decay": 0.0005, "exclude_from_weight_decay": ["batch_norm", ".b_0"]}

optimizer = fleet.optim.Momentum(model, lr=0.01, momentum=0.9)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)

for _ in range(2):
    batch = {"image": torch.randn(4, 3, 64, 64), "label": torch.randint(0, 10, (4,))}
    report = optimizer.minimize(batch, lambda b: torch.nn.functional.cross_entropy(model(b["image"]), b["label"]))
    fleet.log_step(report)
fleet.shutdown()
