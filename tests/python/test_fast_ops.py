# SPDX-License-Identifier: Apache-2.0
"""fleet.fast_ops: ops of an unmodified model become Fleet's."""

import pytest
import torch
from torch import nn

import fleet


def encoder(dropout):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2).train(), torch.randn(3, 32, 64)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def test_are_torchs_to_rounding_without_dropout():
    model, x = encoder(0.0)
    plain = gradients(model, model(x).square().mean())
    fast = fleet.fast_ops()
    with fast:
        loss = model(x).square().mean()
    ours = gradients(model, loss)
    assert fast.counts["scaled_dot_product_attention"] == (2, 0)
    assert fast.counts["gelu"][0] == 2 and fast.counts["layer_norm"][0] == 4
    assert "2 gelu" in fast.summary()
    for a, b in zip(ours, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_replaces_nothing_outside_of_its_block():
    model, x = encoder(0.1)
    fast = fleet.fast_ops(exclude=["gelu"])
    with fast:
        model(x)
    before = fast.counts
    assert "gelu" not in before or before["gelu"][0] == 0
    assert before["dropout"][0] == 6
    model(x)
    assert fast.counts == before


def test_goes_inside_a_budget():
    model, x = encoder(0.1)
    fast = fleet.fast_ops()

    def loss():
        with fast:
            return model(x).square().mean()

    budget = fleet.MemoryBudget("1GiB")
    for _ in range(4):
        assert torch.isfinite(budget.step(loss))
    assert fast.counts["scaled_dot_product_attention"][0] >= 8


def test_an_unknown_op_is_refused_by_name():
    with pytest.raises(fleet.Error, match="layer_norm"):
        fleet.fast_ops(exclude=["layer_nrm"])
