// SPDX-License-Identifier: Apache-2.0
#pragma once

// Data that can be learned, for runs without a download: each application declares
// `synthetic_batch(options, batch_size, seed, length)` beside its options. A batch follows from its
// arguments alone; another seed gives other samples of the same task. Batches are made on the
// device of the options; on the meta device they have shapes only.
//
//   for (int64_t step = 0; step < 100; ++step)
//     optimizer.minimize(synthetic_batch(model.options(), 32, step),
//                        [&](const auto& micro_batch) { return model.loss(micro_batch); });

#include "fleet/applications/applications.h"
