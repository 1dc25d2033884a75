# SPDX-License-Identifier: Apache-2.0
"""Residual blocks, and a training of them within a budget against plain training."""

import torch
from torch import nn

from training import assert_equal, train


def data(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class Blocks(nn.Module):
    """Residual blocks; `around(block, x)` calls each."""

    def __init__(self, around=None, depth=6, width=64):
        super().__init__()
        self.around = around or (lambda block, x: block(x))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + self.around(block, x)
        return x.square().mean()


def blocks(around=None, **options):
    x = data(256, 64)
    return lambda: (Blocks(around, **options), lambda model: model(x))


def check(make, share=0.5, plain_make=None):
    plain = train(plain_make or make)
    ours = train(make, share, plain.activations)
    assert_equal(ours, plain)
    assert ours.activations <= share * plain.activations
    return ours
