# SPDX-License-Identifier: Apache-2.0
"""Unmodified models of the libraries within half and a quarter of their activations: equal to plain
training to the last bit, within the budget, and never split."""

import pytest

from training import assert_equal, train
from zoo import all_models

MODELS = all_models()

# The least that a step can take is above the budget: a few values at the start of the net, or the
# working memory of one op, make up most of its activations.
FLOORS = {}


@pytest.mark.parametrize("share", [0.5, 0.25])
@pytest.mark.parametrize("name", MODELS)
def test_is_plain_training_within(name, share):
    make = MODELS[name]
    plain = train(make)
    share = max(share, FLOORS.get(name, 0))
    ours = train(make, share, plain.activations)
    assert_equal(ours, plain)
    assert ours.activations <= share * plain.activations


def test_there_are_at_least_forty():
    pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    assert len(MODELS) >= 40
