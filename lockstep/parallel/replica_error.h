#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

/// Replicas that must be equal differ. The message names bucket, parameter and ranks. The group
/// stays usable.
class ReplicaError : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
