# SPDX-License-Identifier: Apache-2.0
# Guide 004: local SGD whose interval adapts: parameters are averaged, not gradients. Images are random.
#
#   fleetrun --nproc_per_node 2 examples/python/resnet50_localsgd.py
import torch
import torchvision

import fleet

role = fleet.PaddleCloudRoleMaker(is_collective=True)
fleet.init(role)
model = torchvision.models.resnet50(num_classes=10)

dist_strategy = fleet.DistributedStrategy()
dist_strategy.localsgd = True
dist_strategy.auto = True
dist_strategy.localsgd_configs = {"k_steps": 1}

optimizer = fleet.optim.SGD(model, lr=0.01)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)

for _ in range(2):
    batch = {"image": torch.randn(4, 3, 64, 64), "label": torch.randint(0, 10, (4,))}
    report = optimizer.minimize(batch, lambda b: torch.nn.functional.cross_entropy(model(b["image"]), b["label"]))
    fleet.log_step(report)
optimizer.end_epoch()  # all ranks hold one model again
fleet.shutdown()
