#pragma once

#include "lockstep/error.h"

namespace lockstep::inline v0_2::messages {

/// Members issued operations that do not belong together. Its text is the same on all members that
/// compare them.
class Mismatch : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace lockstep::messages
