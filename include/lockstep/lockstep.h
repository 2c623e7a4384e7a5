#pragma once

// All public headers that a training program needs. None includes torch/torch.h, so the program
// chooses which LibTorch headers it pays for.

#include "lockstep/checkpoint.h"
#include "lockstep/closest_match.h"
#include "lockstep/denormals.h"
#include "lockstep/differentiable.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/efficiency.h"
#include "lockstep/error.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/group.h"
#include "lockstep/init.h"
#include "lockstep/log_sink.h"
#include "lockstep/low_precision_optimizer.h"
#include "lockstep/metrics.h"
#include "lockstep/model_files.h"
#include "lockstep/model_view.h"
#include "lockstep/partition.h"
#include "lockstep/prefetch_loader.h"
#include "lockstep/run_log.h"
#include "lockstep/samplers.h"
#include "lockstep/several_optimizers.h"
#include "lockstep/strategies.h"
#include "lockstep/strategy.h"
#include "lockstep/sync_batch_norm.h"
#include "lockstep/uneven_inputs.h"

#ifdef LOCKSTEP_EXTRAS  // defined by the target Lockstep::extras
#include "lockstep/extras.h"
#endif
