# SPDX-License-Identifier: Apache-2.0
"""Numbers from a counter, for generators of golden files: the same on every machine, without a random state."""

import numpy as np


def counter_numbers(stream, count):
    """Multiples of 1/64 in [-2, 2): exact in float32, and short in text."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(stream * 7919 + 1)
    with np.errstate(over="ignore"):
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(56)).astype(np.float64) - 128) / 64
