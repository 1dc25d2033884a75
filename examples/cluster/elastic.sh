#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An elastic job on one machine: with local SGD the others train on when a rank is lost, and it joins them again.
#
#   RANKS=4 ./elastic.sh ./train --localsgd --localsgd_configs.k_steps 8 --snapshot_dir runs/first
#
set -euo pipefail
exec fleetrun --nproc_per_node "${RANKS:-2}" --elastic --max_restarts 10 --min_ranks "${MIN_RANKS:-1}" \
  --peer_timeout_s 120 --log_dir "${LOG_DIR:-log}" "$@"
