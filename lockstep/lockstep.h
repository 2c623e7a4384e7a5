#pragma once

// All that a training program needs. It includes torch/torch.h nowhere: a program chooses itself.

#include "lockstep/core/error.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/evaluation_sampler.h"
#include "lockstep/data/in_step.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/partition.h"
#include "lockstep/data/scatter.h"
#include "lockstep/group.h"
#include "lockstep/init.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/model_state.h"
#include "lockstep/spawn.h"
#include "lockstep/sync/all_reduce.h"
#include "lockstep/sync/strategy.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/tally.h"
#include "lockstep/train/together.h"
