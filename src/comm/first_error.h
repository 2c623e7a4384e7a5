#pragma once

#include <exception>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

/// Tells all ranks the error of the lowest rank that has one.
/// own: this rank's error; null if it has none.
/// Ranks: all of the group.
/// Throws: on every rank, if a rank has an error, InvalidArgument, CheckpointError or DataError if
/// that rank's is one, else Error.
void throw_first_error(Communicator& group, const std::exception* own);

/// Runs fn, which communicates. If it throws, this rank's own error is thrown instead, if there is
/// one: the other ranks may have failed because of it.
template <class Fn>
auto or_own_error(const std::exception_ptr& own, const Fn& fn) {
  try {
    return fn();
  } catch (const std::exception&) {
    if (own != nullptr) std::rethrow_exception(own);
    throw;
  }
}

}  // namespace lockstep::detail
