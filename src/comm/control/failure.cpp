#include "comm/control/failure.h"

#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {

Failure failure_of(const std::exception& error) {
  return {.timeout = dynamic_cast<const TimeoutError*>(&error) != nullptr, .text = error.what()};
}

}  // namespace lockstep::control
