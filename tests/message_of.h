#pragma once

#include <string>

namespace lockstep::testing {

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

}  // namespace lockstep::testing
