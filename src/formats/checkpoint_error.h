#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// Runs fn. An error of LibTorch becomes a CheckpointError, whose text begins with where.
template <class Function>
auto as_checkpoint_error(std::string_view where, const Function& fn) {
  try {
    return fn();
  } catch (const c10::Error& error) {
    throw CheckpointError(concat(where, ": ", error.what_without_backtrace()));
  }
}

}  // namespace lockstep::detail
