#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "tests/message_of.h"
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

/// The output or error of fn in a child of this process, and how the child has ended if not with 0.
inline std::string in_child(const std::function<std::string()>& fn) {
  int ends[2];
  if (::pipe(ends) != 0) return "pipe() failed";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    const auto error = message_of<std::exception>([&] { text = fn(); });
    text += error;
    const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = -1;  // if fork() has failed
  ::waitpid(child, &status, 0);
  return status == 0 ? text : text + "; the child ended with status " + std::to_string(status);
}

}  // namespace lockstep::testing
