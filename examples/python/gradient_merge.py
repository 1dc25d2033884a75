# SPDX-License-Identifier: Apache-2.0
# Guide 002: four batches of N make one update, as one batch of 4 N would. Images are random.
#
#   fleetrun --nproc_per_node 2 examples/python/gradient_merge.py
import torch
import torchvision

import fleet

fleet.init(is_collective=True)
model = torchvision.models.resnet18(num_classes=10)

strategy = fleet.DistributedStrategy()
strategy.gradient_merge = True
strategy.gradient_merge_configs = {"k_steps": 4, "avg": True}

optimizer = fleet.optim.Momentum(model, lr=0.1, momentum=0.9)
optimizer = fleet.distributed_optimizer(optimizer, strategy)

for _ in range(8):
    image, label = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    report = optimizer.minimize(lambda: torch.nn.functional.cross_entropy(model(image), label))
    if report.updated:
        fleet.log_step(report)
optimizer.end_epoch()  # updates with what is left of the last four
fleet.shutdown()
