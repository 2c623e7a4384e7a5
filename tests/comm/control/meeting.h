#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "comm/control/gathering.h"
#include "comm/control/joining.h"
#include "lockstep/error.h"

namespace lockstep::testing {

/// A rank of a world of this machine that says it is on the host of that name.
inline control::Settings rank_of(int rank, int size, const std::string& host = "a") {
  return {.rank = rank, .size = size, .host = host, .timeout = std::chrono::seconds(20)};
}

/// The error that fn throws, with the kind of a timeout before it; "nothing" if it throws none.
inline std::string thrown(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const TimeoutError& error) {
    return std::string("timeout: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

/// The connections of rank 0 and of these others, which have met. Throws what rank 0 threw.
struct Met {
  std::vector<control::Member> of_rank_0;
  std::vector<control::Member> of_others;
};

inline Met meet(control::Settings rank_0, const std::vector<control::Settings>& others) {
  control::Gathering gathering(std::move(rank_0));
  std::vector<std::future<control::Member>> coming;
  for (const auto& settings : others) {
    coming.push_back(
        std::async(std::launch::async, [&] { return join(gathering.offer(), settings); }));
  }
  Met met{.of_rank_0 = gathering.wait(), .of_others = {}};
  for (auto& one : coming) met.of_others.push_back(one.get());
  return met;
}

}  // namespace lockstep::testing
