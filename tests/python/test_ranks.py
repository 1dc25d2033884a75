# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a Python program: as plain training on one, and bit for bit as a program in C++."""

import numpy
import pytest
import torch
from programs import find_program, run_ranks
from test_strategy import plain, strategy_with

TRAIN = """
import sys, torch, fleet
from torch import nn
fleet.init(is_collective=True)
torch.manual_seed(0)
x = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
y = torch.randint(0, 4, (24,), generator=torch.Generator().manual_seed(2))
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))
strategy = fleet.DistributedStrategy.load(sys.argv[1])
optimizer = fleet.distributed_optimizer(fleet.optim.Momentum(model, lr=0.1), strategy)
rank, ranks = fleet.worker_index(), fleet.worker_num()
part = slice(rank * 24 // ranks, (rank + 1) * 24 // ranks)
for _ in range(4):
    optimizer.minimize((x[part], y[part]), lambda b: nn.functional.cross_entropy(model(b[0]), b[1]))
optimizer.end_epoch()
if fleet.is_first_worker():
    with open(sys.argv[2], "wb") as file:
        for p in model.parameters():
            file.write(p.detach().numpy().tobytes())
fleet.shutdown()
"""

STRATEGIES = {
    "data parallel": {},
    "local SGD": dict(localsgd=True, localsgd_configs={"k_steps": 2}),
    "gradient merge": dict(gradient_merge=True, gradient_merge_configs={"k_steps": 3}),
    "amp": dict(amp=True),
    "LARS": dict(lars=True),
    "memory budget": dict(recompute=True, recompute_configs={"memory_budget": "1MiB"}),  # the net takes 14 KiB: recorded, not evicted
}


def parameters(file):
    return torch.from_numpy(numpy.fromfile(file, numpy.float32))


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_ranks_are_those_of_cpp(tmp_path, name):
    strategy_with(**STRATEGIES[name]).save(str(tmp_path / "strategy.json"))
    (tmp_path / "train.py").write_text(TRAIN)
    run_ranks(tmp_path, tmp_path / "train.py", "strategy.json", "python.bin")
    run_ranks(tmp_path, find_program("cpp_twin"), "strategy.json", "cpp.bin")
    assert torch.equal(parameters(tmp_path / "python.bin"), parameters(tmp_path / "cpp.bin"))


@pytest.mark.parametrize("name", ["data parallel", "gradient merge"])
def test_two_ranks_are_one(tmp_path, name):
    strategy_with(**STRATEGIES[name]).save(str(tmp_path / "strategy.json"))
    (tmp_path / "train.py").write_text(TRAIN)
    run_ranks(tmp_path, tmp_path / "train.py", "strategy.json", "python.bin")
    expected = torch.cat([p.flatten() for p in plain()])
    torch.testing.assert_close(parameters(tmp_path / "python.bin"), expected, rtol=1e-5, atol=1e-6)
