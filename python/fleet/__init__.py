# SPDX-License-Identifier: Apache-2.0
"""Training with super-large batches: an unmodified PyTorch model within a memory budget.

    budget = fleet.MemoryBudget("8GiB")
    loss = budget.step(lambda: model(**batch).loss)   # forward and backward
    optimizer.step(); optimizer.zero_grad()
"""

from fleet import _torch_check  # first: what follows loads libraries of torch's
from fleet._errors import Error, Stopped, UsageError
from fleet._C import (
    DataPosition,
    DistributedOptimizer,
    DistributedStrategy,
    MemoryBudget,
    MemoryReport,
    PaddleCloudRoleMaker,
    Plan,
    Snapshots,
    UpdateReport,
    __version__,
    all_reduce_sum,
    barrier_worker,
    checkpoint,
    distributed_optimizer,
    fast_ops,
    init,
    is_first_worker,
    is_initialized,
    local_worker_index,
    local_worker_num,
    log_step,
    recompute,
    shutdown,
    worker_endpoints,
    worker_index,
    worker_num,
)
from fleet import optim
from fleet._attach import Attachment, attach as _attach
from fleet._plan import plan

MemoryBudget.attach = _attach

__all__ = [
    "Attachment",
    "DataPosition",
    "DistributedOptimizer",
    "DistributedStrategy",
    "Error",
    "MemoryBudget",
    "MemoryReport",
    "PaddleCloudRoleMaker",
    "Plan",
    "Snapshots",
    "Stopped",
    "UpdateReport",
    "UsageError",
    "all_reduce_sum",
    "barrier_worker",
    "checkpoint",
    "distributed_optimizer",
    "fast_ops",
    "init",
    "is_first_worker",
    "is_initialized",
    "local_worker_index",
    "local_worker_num",
    "log_step",
    "optim",
    "plan",
    "recompute",
    "shutdown",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]
