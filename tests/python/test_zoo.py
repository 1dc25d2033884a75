# SPDX-License-Identifier: Apache-2.0
"""Unmodified models of the libraries within half and a quarter of their activations: equal to plain
training to the last bit, within the budget, and never split.

--zoo few: a model of each kind. --zoo_table FILE: writes the table of docs/python_zoo.md."""

import functools

import pytest

from training import TooSmall, assert_equal, train
from zoo import BEYOND_ONCE, FEW, FLOORS, all_models

MODELS = all_models()


@functools.lru_cache(maxsize=1)
def plain_training(name):
    return train(MODELS[name])


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        few = metafunc.config.getoption("--zoo") == "few"
        names = [name for name in MODELS if name in FEW or not few]
        pairs = [(name, share) for name in names for share in (0.5, 0.25)]
        metafunc.parametrize("name, share", pairs, ids=[f"{name}, {share:.0%}" for name, share in pairs])


def test_is_plain_training_within(name, share, zoo_table):
    plain = plain_training(name)
    try:
        ours = train(MODELS[name], share, plain.activations)
    except TooSmall as error:
        floor, why = FLOORS.get(name, (0, ""))
        least = error.least / plain.activations
        assert share < least <= floor, f"needs {least:.3f}, which is no known floor: {error}"
        share = least
        ours = train(MODELS[name], share, plain.activations)  # with what the error asks for
        zoo_table.add_floor(name, least, why)
    assert_equal(ours, plain)
    assert all(ours.within[1 if name in BEYOND_ONCE else 0 :])
    zoo_table.add(name, plain, share, ours, "" if ours.within[0] else "its first step takes more")


def test_there_are_at_least_forty():
    pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    assert len(MODELS) >= 40
    assert set(FEW) <= set(MODELS) and set(FLOORS) <= set(MODELS)
