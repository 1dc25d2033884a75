# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a Python program: as plain training on one, and bit for bit as a program in C++."""

import subprocess

import numpy
import pytest
import torch
from programs import environment, find_program, run_ranks
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
inner = fleet.optim.Adam(model, lr=0.1) if strategy.lamb else fleet.optim.Momentum(model, lr=0.1)
optimizer = fleet.distributed_optimizer(inner, strategy)
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
    "LAMB": dict(lamb=True),
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


DEEP = """
import sys, torch, fleet
from torch import nn
fleet.init(is_collective=True)
torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Dropout(0.1))]
model = nn.Sequential(*layers)
x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(fleet.worker_index()))
strategy = fleet.DistributedStrategy.load(sys.argv[1])
optimizer = fleet.distributed_optimizer(fleet.optim.Momentum(model, lr=0.1), strategy)
data = fleet.DataPosition()
snapshots = fleet.Snapshots(optimizer, "snapshots", save_every=2, data=data) if sys.argv[4] == "saves" else None
for update in range(data.next_update, int(sys.argv[3])):
    report = optimizer.minimize(x, lambda part: model(part).square().mean())
    data.next_update = update + 1
    if snapshots:
        snapshots.after_update()
if snapshots:
    snapshots.finish()
if strategy.recompute:
    assert report.memory.evicted > 0 and report.memory.measured_peak <= report.memory.budget, report.memory
if fleet.is_first_worker():
    print("resumed", snapshots.resumed if snapshots else None)
    with open(sys.argv[2], "wb") as file:
        for p in model.parameters():
            file.write(p.detach().numpy().tobytes())
fleet.shutdown()
"""


def train_deep(tmp_path, file, updates=6, saves="plain", **strategy):
    strategy_with(**strategy).save(str(tmp_path / "strategy.json"))
    (tmp_path / "train.py").write_text(DEEP)
    output = run_ranks(tmp_path, tmp_path / "train.py", "strategy.json", file, updates, saves)
    return parameters(tmp_path / file), output


def test_a_budget_that_evicts_on_two_ranks_is_bit_equal(tmp_path):
    plain, _ = train_deep(tmp_path, "plain.bin")
    ours, _ = train_deep(tmp_path, "ours.bin", recompute=True, recompute_configs={"memory_budget": "60% of plain"})
    assert torch.equal(ours, plain)


def test_two_ranks_resume_bit_for_bit(tmp_path):
    plain, _ = train_deep(tmp_path, "plain.bin")
    train_deep(tmp_path, "first.bin", updates=4, saves="saves")
    ours, output = train_deep(tmp_path, "ours.bin", saves="saves")
    assert "resumed 4" in output
    assert torch.equal(ours, plain)


def test_a_usage_error_ends_a_job_at_once(tmp_path):
    (tmp_path / "train.py").write_text("import fleet\nfleet.init(is_collective=True)\nfleet.MemoryBudget('much')\n")
    command = [find_program("fleetrun"), "--nproc_per_node", "2", "--max_restarts", "3", "--log_dir", "log", "train.py"]
    result = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 2, result.stdout + result.stderr
    log = (tmp_path / "log" / "workerlog.0").read_text()
    assert log.count("error: [memory] 'much' is no amount of memory") == 1
    assert "fix: write a size like 8GiB" in log and "Traceback" not in log
