#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "lockstep/group.h"
#include "tests/ranks.h"

namespace lockstep::testing {

/// run_ranks(), with the group of each rank.
inline void run_groups(int n, const std::function<void(const Group&)>& fn) {
  run_ranks(n, [&](std::shared_ptr<Communicator> ranks) { fn(Group(std::move(ranks))); });
}

}  // namespace lockstep::testing
