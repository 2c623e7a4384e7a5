#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/text.h"
#include "profile/group_statistics.h"
#include "tests/comm/conformance.h"

// What goes over a link, and what is complete while ranks compute.

namespace lockstep::testing {

/// Bytes that this host's end of the link has sent, as its interface counts them.
inline std::uint64_t bytes_over_link() {
  std::ifstream counter("/sys/class/net/link0/statistics/tx_bytes");
  std::uint64_t bytes = 0;
  if (counter >> bytes) return bytes;
  throw std::runtime_error("no link0 in /sys/class/net");
}

/// Sums four million floats with a float16 wire dtype. Returns "halves" if the link and the
/// statistics counted two bytes for each, else the counts.
inline std::string halves_over_the_link(Communicator& group) {
  constexpr std::size_t count = 4'000'000;
  constexpr std::uint64_t expected = 2 * count;
  std::vector<float> values(count, 1);
  group.barrier().wait();
  const auto& statistics = lockstep::detail::GroupStatistics::of(group);
  const auto before = bytes_over_link();
  group.all_reduce(values.data(), count, ReduceOp::sum, Wire{.dtype = DType::f16}).wait();
  group.barrier().wait();
  const auto sent = bytes_over_link() - before;
  std::uint64_t counted = 0;
  for (const auto& row : statistics.rows()) counted += row.bytes;
  require(values == std::vector<float>(count, static_cast<float>(group.size())), group,
          "a sum is wrong");
  // The link counts headers, and what acknowledges the other side's bytes.
  if (counted == expected && sent > expected && sent < expected + expected / 4) return "halves";
  return lockstep::detail::concat("sent ", sent, ", counted ", counted, ", expected ", expected);
}

/// Milliseconds of an operation on this rank. Rank 1 issues it 10 ms later. The least of five,
/// since other work on the machine can only add to it.
template <class Begin>
double milliseconds_with_a_late_rank(Communicator& group, const Begin& begin) {
  using Clock = std::chrono::steady_clock;
  std::array<double, 5> times{};
  for (double& time : times) {
    group.barrier().wait();
    const auto start = Clock::now();
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    begin().wait();
    time = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  return std::ranges::min(times);
}

/// Gathers 8 MB of each of two ranks in place, and reduces and scatters as many. Both take the same
/// time if the link carries both parts at the same time. Returns "both ways" if so in one of five
/// turns, as other work can delay either, else the times.
inline std::string both_ways_over_the_link(Communicator& group) {
  constexpr std::size_t count = 2'000'000;
  std::vector<float> whole(2 * count, 1);
  std::vector<float> part(count);
  const auto* const own = whole.data() + static_cast<std::size_t>(group.rank()) * count;
  double gather = 0, reduce = 0;
  for (int turn = 0; turn < 5; ++turn) {
    gather = milliseconds_with_a_late_rank(
        group, [&] { return group.all_gather(own, whole.data(), count, DType::f32); });
    reduce = milliseconds_with_a_late_rank(group, [&] {
      return group.reduce_scatter(whole.data(), part.data(), count, DType::f32, ReduceOp::sum);
    });
    std::uint8_t both = gather < 1.4 * reduce ? 1 : 0;  // rank 0 decides
    group.broadcast(&both, 1, DType::u8, 0).wait();
    if (both != 0) return "both ways";
  }
  return lockstep::detail::concat("all_gather ", gather, " ms, reduce_scatter ", reduce, " ms");
}

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
      require(complete_while_computing(work, std::chrono::seconds(60)), group,
              "an operation was not complete after 60 s of computing");
    }
    for (auto& work : works) work.wait();
    const auto count = static_cast<float>(n);
    require(sums == std::vector<float>(large, count * (count + 1) / 2) &&
                more == std::vector<float>(large, count - 1),
            group, "a large result is wrong");
    require(short_sums[6] == count * (count - 1) / 2 && gathered.back() == count - 1 &&
                (group.rank() != 1 || message.back() == 0),
            group, "a result is wrong");
  }
  for (const auto& row : statistics.rows()) {
    require(row.collective != Collective::all_reduce ||
                (row.communicating.count() > 0 && row.hidden == row.communicating),
            group, "what was complete before it was waited for is not counted as hidden");
  }
}

/// Without a progress thread, an operation must not complete while no rank waits. Returns the
/// hidden time that the statistics count for it.
inline std::chrono::nanoseconds check_no_overlap(Communicator& group) {
  std::vector<float> values(1'000'000, 1);
  const auto& statistics = lockstep::detail::GroupStatistics::of(group);
  group.barrier().wait();
  auto sum = group.all_reduce(values.data(), values.size(), DType::f32, ReduceOp::sum);
  require(!complete_while_computing(sum, std::chrono::seconds(1)), group,
          "an operation is complete, and nobody waited");
  sum.wait();
  return statistics.rows().back().hidden;
}

}  // namespace lockstep::testing
