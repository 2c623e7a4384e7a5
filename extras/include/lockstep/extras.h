#pragma once

// All public headers of Lockstep::extras. lockstep/lockstep.h includes it in programs that link
// Lockstep::extras.

#include "lockstep/activation_checkpoint.h"
#include "lockstep/autocast.h"
#include "lockstep/batches.h"
#include "lockstep/datasets.h"
#include "lockstep/early_stopping.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/learning_rate.h"
#include "lockstep/moving_average.h"
