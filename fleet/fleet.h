#pragma once

// Everything that a training program uses.

#include "fleet/comm/communicator.h"
#include "fleet/comm/role_maker.h"
#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/data/batch.h"
#include "fleet/data/data_loader.h"
#include "fleet/data/fashion_mnist.h"
#include "fleet/metrics/accuracy.h"
#include "fleet/metrics/progress.h"
#include "fleet/metrics/step_line.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"
#include "fleet/parallel/data_parallel.h"
#include "fleet/parallel/sync_batch_norm.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/train_config.h"
