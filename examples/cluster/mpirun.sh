#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Open MPI, one process per rank:
#
#   ./mpirun.sh HOSTFILE RANKS ./train --snapshot_dir runs/first --save_every 500
#
set -euo pipefail
usage="./mpirun.sh HOSTFILE RANKS PROGRAM [ARGUMENT...]"
hosts=${1:?$usage}
ranks=${2:?$usage}
shift 2

# Rank 0 runs on the first host, and hosts the store there.
MASTER_ADDR=${MASTER_ADDR:-$(awk '!/^#/ && NF { print $1; exit }' "$hosts")}
MASTER_PORT=${MASTER_PORT:-29500}
FLEET_JOB_KEY=${FLEET_JOB_KEY:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
export MASTER_ADDR MASTER_PORT FLEET_JOB_KEY
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=3000

# Variables are passed by name: a value on the command line is seen by every user of the machine.
# mpirun would bind each rank, with all of its threads, to one core.
exec mpirun --hostfile "$hosts" -np "$ranks" --bind-to none \
  -x MASTER_ADDR -x MASTER_PORT -x FLEET_JOB_KEY \
  -x OMP_NUM_THREADS -x OMP_WAIT_POLICY -x GOMP_SPINCOUNT "$@"
