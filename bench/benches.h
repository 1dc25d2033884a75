// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bench/report.h"

namespace fleet::bench {

/// Every benchmark runs on each of its ranks; what rank 0 returns is reported.
std::vector<Row> bench_allreduce();
std::vector<Row> bench_any_model();
std::vector<Row> bench_data_parallel();
std::vector<Row> bench_elastic();
std::vector<Row> bench_faults();
std::vector<Row> bench_images();
std::vector<Row> bench_kernels();
std::vector<Row> bench_local_sgd();
std::vector<Row> bench_local_sgd_accuracy();
std::vector<Row> bench_memory();
std::vector<Row> bench_memory_batch();
std::vector<Row> bench_models();
std::vector<Row> bench_optim();
std::vector<Row> bench_python();
std::vector<Row> bench_snapshot();
std::vector<Row> bench_snapshot_large();
std::vector<Row> bench_sync_batch_norm();
std::vector<Row> bench_tape();

}  // namespace fleet::bench
