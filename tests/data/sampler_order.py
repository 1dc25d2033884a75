#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the golden orders of sharded_sampler_test.cpp without Fleet's code."""

M = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M
    return z ^ z >> 31


def order(size, seed, epoch):
    state = 0
    for word in (seed, epoch):
        state = mix(state + GAMMA & M) ^ mix(word % 2**64 + GAMMA & M)

    def below(bound):
        nonlocal state
        while True:
            state = state + GAMMA & M
            draw = mix(state)
            if draw >= 2**64 % bound:
                return draw % bound

    samples = list(range(size))
    for left in range(size, 1, -1):
        chosen = below(left)
        samples[left - 1], samples[chosen] = samples[chosen], samples[left - 1]
    return samples


if __name__ == "__main__":
    for size, seed, epoch, shown in ((10, 0, 0, 10), (10, 0, 1, 10), (60000, 42, 0, 8)):
        print(f"size {size}, seed {seed}, epoch {epoch}:", order(size, seed, epoch)[:shown])
