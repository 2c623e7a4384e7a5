#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

/// Parameters that must be equal on all ranks differ. The message names bucket, parameter, ranks
/// and likely causes. The group stays usable.
class ReplicaError : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
