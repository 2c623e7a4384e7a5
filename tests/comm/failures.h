#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "ranks.h"

namespace lockstep::testing {

/// What ranks give to collectives that are not to succeed: sixteen for each of eight ranks.
inline float floats[128];

/// What each rank's fn threw, "" if nothing. Ranks are threads.
inline std::vector<std::string> what_ranks_threw(
    int n, const RankFunction& fn, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  run_ranks(
      n,
      [&](const std::shared_ptr<Communicator>& group) {
        try {
          fn(group);
        } catch (const Error& error) {
          texts[static_cast<std::size_t>(group->rank())] = error.what();
        }
      },
      timeout);
  return texts;
}

}  // namespace lockstep::testing
