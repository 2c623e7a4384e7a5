#pragma once

#include <chrono>

#include "lockstep/error.h"
#include "tests/ranks.h"

namespace lockstep::testing {

using namespace std::chrono_literals;

/// Buffers for collectives that fail: sixteen elements for each of eight ranks.
inline float floats[128];

/// What text says of the error that fn threw on each rank, "" if none. Ranks are threads.
inline std::vector<std::string> errors_of_ranks(
    int n, const RankFunction& fn, const std::function<std::string(const Error&)>& text,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  run_ranks(
      n,
      [&](const std::shared_ptr<Communicator>& group) {
        try {
          fn(group);
        } catch (const Error& error) {
          texts[static_cast<std::size_t>(group->rank())] = text(error);
        }
      },
      timeout);
  return texts;
}

/// The text of the error that fn threw on each rank.
inline std::vector<std::string> what_ranks_threw(
    int n, const RankFunction& fn, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return errors_of_ranks(
      n, fn, [](const Error& error) { return error.what(); }, timeout);
}

}  // namespace lockstep::testing
