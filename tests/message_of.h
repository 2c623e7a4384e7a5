#pragma once

#include <optional>
#include <string>

#include "lockstep/error.h"

namespace lockstep::testing {

/// The error of that type that fn throws. Ends the rank if it throws none.
template <class Thrown, class Fn>
Thrown thrown_by(const Fn& fn) {
  std::optional<Thrown> thrown;
  try {
    fn();
  } catch (const Thrown& error) {
    thrown.emplace(error);
  }
  return thrown.value();
}

/// The message of the error of that type that fn throws; "" if it throws nothing.
template <class Thrown, class Fn>
std::string message_of(const Fn& fn) {
  try {
    fn();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

/// That of a CheckpointError.
template <class Fn>
std::string failure(const Fn& fn) {
  return message_of<CheckpointError>(fn);
}

/// The fields of an error: "timeout by rank 1 in all_reduce #17, cause timeout".
inline std::string fields_of(const Error& error) {
  return std::string(name(error.kind())) + " by rank " + std::to_string(error.rank()) + " in " +
         error.operation() + ", cause " + name(error.cause_kind());
}

}  // namespace lockstep::testing
