#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/in_child.h"
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

/// Expects such an error of every rank.
inline void expect_errors(int n, const ::testing::Matcher<const std::string&>& error,
                          const RankFunction& fn,
                          std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  EXPECT_THAT(what_ranks_threw(n, fn, timeout), ::testing::Each(error));
}

/// Runs the calls concurrently. Returns the error of each, "" if it threw nothing.
inline std::vector<std::string> what_calls_threw(const std::vector<std::function<void()>>& calls) {
  std::vector<std::string> texts(calls.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    threads.emplace_back([&, i] { texts[i] = message_of<Error>(calls[i]); });
  }
  for (auto& thread : threads) thread.join();
  return texts;
}

}  // namespace lockstep::testing
