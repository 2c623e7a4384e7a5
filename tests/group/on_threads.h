#pragma once

#include <chrono>
#include <functional>

#include "lockstep/init.h"
#include "tests/matchers.h"
#include "tests/on_ranks.h"
#include "tests/refusal.h"

namespace lockstep::testing {

/// Runs fn on n ranks, each a thread.
inline void on_ranks(int n, const std::function<void(const Group&)>& fn) {
  spawn(n, fn, {.timeout = std::chrono::seconds(60)});
}

}  // namespace lockstep::testing
