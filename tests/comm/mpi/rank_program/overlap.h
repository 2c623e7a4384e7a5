#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "profile/group_statistics.h"

namespace lockstep::testing {

/// Computes, and touches no group, until the operation is complete. False after so long.
inline bool complete_while_computing(const Work& work, std::chrono::seconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  double sum = 0;
  while (!work.complete() && std::chrono::steady_clock::now() < until) {
    for (int i = 1; i < 10'000; ++i) sum += 1.0 / i;
  }
  return work.complete() && sum >= 0;
}

/// Every rank begins operations of all kinds, of the group and of one with the same members, and
/// computes until all are complete, then looks at what they brought.
inline void check_overlap(Communicator& group) {
  constexpr std::size_t large = 3'000'001;
  const auto n = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<float>(group.rank());
  const auto other = group.split(0, 0);
  const auto& statistics = lockstep::detail::GroupStatistics::of(group);
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<float> sums(large, rank + 1), more(large, rank), short_sums(7, rank);
    std::vector<float> gathered(3 * n), own(3, rank), message(100'000, rank);
    std::vector<Work> works;
    works.push_back(group.all_reduce(sums.data(), large, DType::f32, ReduceOp::sum));
    works.push_back(other->all_reduce(more.data(), large, DType::f32, ReduceOp::max));
    works.push_back(group.all_reduce(short_sums.data(), 7, DType::f32, ReduceOp::sum));
    works.push_back(other->all_gather(own.data(), gathered.data(), 3, DType::f32));
    if (group.rank() == 0) works.push_back(group.send(message.data(), 100'000, DType::f32, 1));
    if (group.rank() == 1) works.push_back(group.recv(message.data(), 100'000, DType::f32, 0));
    for (const auto& work : works) {
      if (!complete_while_computing(work, std::chrono::seconds(60))) {
        throw std::runtime_error("rank " + std::to_string(group.rank()) +
                                 ": an operation was not complete after 60 s of computing");
      }
    }
    for (auto& work : works) work.wait();
    const auto count = static_cast<float>(n);
    for (std::size_t i = 0; i < large; ++i) {
      if (sums[i] != count * (count + 1) / 2 || more[i] != count - 1) {
        throw std::runtime_error("a large result is wrong");
      }
    }
    if (short_sums[6] != count * (count - 1) / 2 || gathered.back() != count - 1 ||
        (group.rank() == 1 && message.back() != 0)) {
      throw std::runtime_error("a result is wrong");
    }
  }
  for (const auto& row : statistics.rows()) {
    if (row.collective != Collective::all_reduce) continue;
    if (row.communicating.count() == 0 || row.hidden != row.communicating) {
      throw std::runtime_error(
          "what was complete before it was waited for is not counted as hidden");
    }
  }
}

/// Without a progress thread, an operation must not complete while no rank waits. Returns the
/// hidden time that the statistics count for it.
inline std::chrono::nanoseconds check_no_overlap(Communicator& group) {
  std::vector<float> values(1'000'000, 1);
  const auto& statistics = lockstep::detail::GroupStatistics::of(group);
  group.barrier().wait();
  auto sum = group.all_reduce(values.data(), values.size(), DType::f32, ReduceOp::sum);
  if (complete_while_computing(sum, std::chrono::seconds(1))) {
    throw std::runtime_error("an operation is complete, and nobody waited");
  }
  sum.wait();
  return statistics.rows().back().hidden;
}

}  // namespace lockstep::testing
