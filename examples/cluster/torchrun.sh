#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# torchrun starts any program with --no_python. On every node:
#
#   NNODES=2 NODE_RANK=0 RANKS_PER_NODE=4 MASTER_ADDR=node1 ./torchrun.sh ./train --snapshot_dir runs/first
#
set -euo pipefail
exec torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
  --nproc_per_node="${RANKS_PER_NODE:-1}" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}" \
  --max_restarts="${MAX_RESTARTS:-0}" --no_python "$@"
