# SPDX-License-Identifier: Apache-2.0
"""The peer of fleet-bench images: PyTorch's DataLoader with Pillow and torchvision's transforms.

images_peer.py FOLDER BATCH: writes "ready"; then each line on standard input, "PHASE WORKERS", is one pass over the
folder's images, answered by how many there were.
"""
import sys

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

folder, batch_size = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
finish = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
phases = {
    "train": [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()],
    "test": [transforms.Resize(256), transforms.CenterCrop(224)],
}
loaders = {}


def loader_of(phase, workers):
    """Made once: a worker stays from pass to pass."""
    if (phase, workers) not in loaders:
        data = datasets.ImageFolder(folder, transforms.Compose(phases[phase] + finish))
        loaders[phase, workers] = DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers,
                                             persistent_workers=workers > 0)
    return loaders[phase, workers]


print("ready", flush=True)
for line in sys.stdin:
    phase, workers = line.split()
    print(sum(len(target) for _, target in loader_of(phase, int(workers))), flush=True)
