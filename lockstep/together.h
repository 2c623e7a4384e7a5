#pragma once

#include <functional>

#include "lockstep/group.h"

namespace lockstep {

/// Runs fn on every rank and fails on all ranks if it failed on one, so that nobody goes on alone:
/// a rank where it failed raises its own error, the others raise one of the same type that names
/// the first such rank. For work that can fail on one rank only, as reading files; the group stays
/// usable.
/// Ranks: all; fn itself must not communicate.
void together(const Group& group, const std::function<void()>& fn);

}  // namespace lockstep
