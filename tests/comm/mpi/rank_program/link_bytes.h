#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/text.h"
#include "profile/group_statistics.h"

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
  for (const float value : values) {
    if (value != static_cast<float>(group.size())) throw std::runtime_error("a sum is wrong");
  }
  // The link counts headers, and what acknowledges the other side's bytes.
  if (counted == expected && sent > expected && sent < expected + expected / 4) return "halves";
  return lockstep::detail::concat("sent ", sent, ", counted ", counted, ", expected ", expected);
}

/// Milliseconds of an operation on this rank. Rank 1 issues it 10 ms later. Median of five.
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
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// Gathers 8 MB of each of two ranks in place, and reduces and scatters as many. Both take the same
/// time if the link carries both parts at the same time. Returns "both ways" if so, else the times.
inline std::string both_ways_over_the_link(Communicator& group) {
  constexpr std::size_t count = 2'000'000;
  std::vector<float> whole(2 * count, 1);
  std::vector<float> part(count);
  const auto* const own = whole.data() + static_cast<std::size_t>(group.rank()) * count;
  const double gather = milliseconds_with_a_late_rank(
      group, [&] { return group.all_gather(own, whole.data(), count, DType::f32); });
  const double reduce = milliseconds_with_a_late_rank(group, [&] {
    return group.reduce_scatter(whole.data(), part.data(), count, DType::f32, ReduceOp::sum);
  });
  if (gather < 1.4 * reduce) return "both ways";
  return lockstep::detail::concat("all_gather ", gather, " ms, reduce_scatter ", reduce, " ms");
}

}  // namespace lockstep::testing
