# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel of torch inside a budget, on two ranks."""

import subprocess

from programs import environment, find_program

HEAD = """
import sys, torch, fleet
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from fleet._C import testing
import torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
x = torch.randn(256, 64, generator=torch.Generator().manual_seed(rank))

def make(norm, **options):
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 256), norm(256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))]
    return DistributedDataParallel(nn.Sequential(*layers), **options)
"""

TRAIN = """
def train(norm, share=None, of=None, **options):
    counting = testing.Counting()
    model = make(norm, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(5 + rank)
    model(x).square().mean().backward()
    optimizer.step()
    budget, peak = None, 0
    for _ in range(5):
        optimizer.zero_grad(set_to_none=False)
        live = testing.counted()
        testing.reset_peak()
        if share:
            budget = budget or fleet.MemoryBudget(live + int(of * share))
            budget.step(lambda: model(x).square().mean())
        else:
            model(x).square().mean().backward()
        peak = max(peak, testing.peak() - live)
        optimizer.step()
    del counting
    return [value.clone() for value in model.state_dict().values()], peak

for norm in (nn.LayerNorm, nn.BatchNorm1d):
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        plain, activations = train(norm, **options)
        for share in (0.5, 0.25):
            ours, peak = train(norm, share, activations, **options)
            assert all(torch.equal(a, b) for a, b in zip(ours, plain)), (norm, options, share)
            assert peak <= share * activations + 4096, (norm, options, share, peak / activations)
print("equal", flush=True)
dist.destroy_process_group()
"""

SHORT_OF_MEMORY = """
class Once(torch.autograd.Function):
    failed = rank != 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if not Once.failed:
            Once.failed = True
            torch.empty(1 << 50)
        return g

model = make(nn.LayerNorm)
budget = fleet.MemoryBudget("1GiB")
try:
    budget.step(lambda: Once.apply(model(x)).square().mean())
except fleet.Error as error:
    print(error, flush=True)
    import os
    os._exit(7)
print("went on", flush=True)
"""


def run_two(tmp_path, code):
    """Output and exit code of the job; torch's own rendezvous, by fleetrun's environment."""
    (tmp_path / "train.py").write_text(HEAD + code)
    command = [find_program("fleetrun"), "--nproc_per_node", "2", "--log_dir", "log", "train.py"]
    result = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    return (tmp_path / "log" / "workerlog.0").read_text(), result.returncode


def test_is_bit_equal_to_ddp_without_a_budget(tmp_path):
    output, code = run_two(tmp_path, TRAIN)
    assert code == 0 and "equal" in output, output


def test_a_step_that_fails_on_one_rank_is_not_repeated(tmp_path):
    output, code = run_two(tmp_path, SHORT_OF_MEMORY)
    assert code != 0 and "under DistributedDataParallel its collectives have begun" in output, output
