#include "bench/machine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "bench/clock.h"

namespace lockstep::bench {

namespace {

constexpr int blocks = 40;
constexpr std::uint32_t trips = 500;

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

/// The best of many short blocks: what else runs on these cores for a moment does not matter.
double round_trip_between(int first, int second) {
  struct alignas(128) Line {
    std::atomic<std::uint32_t> value{0};
  } line;
  constexpr std::uint32_t last = 2 * trips * blocks;
  std::thread echo([&] {
    keep_to({second});
    for (std::uint32_t turn = 1; turn < last; turn += 2) {
      while (line.value.load(std::memory_order_acquire) != turn) {
      }
      line.value.store(turn + 1, std::memory_order_release);
    }
  });
  double best = 1e9;
  std::thread caller([&] {
    keep_to({first});
    std::uint32_t turn = 0;
    for (int block = 0; block < blocks; ++block) {
      const double begin = now_us();
      for (std::uint32_t i = 0; i < trips; ++i) {
        line.value.store(turn + 1, std::memory_order_release);
        turn += 2;
        while (line.value.load(std::memory_order_acquire) != turn) {
        }
      }
      best = std::min(best, (now_us() - begin) * 1e3 / trips);
    }
  });
  caller.join();
  echo.join();
  return best;
}

}  // namespace

void keep_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

std::optional<double> cache_line_round_trip(Transport& transport) {
  if (!transport.sleeps_while_waiting()) return std::nullopt;
  // Where each rank may run: its first processor, and whether that is the only one.
  const std::vector<int> mine = allowed_cpus();
  const std::int32_t own = mine.size() == 1 ? mine[0] : -1;
  std::vector<std::int32_t> bound(static_cast<std::size_t>(transport.size()));
  transport.all_gather(&own, bound.data(), 1, DType::i32);

  std::optional<double> result;
  if (transport.rank() == 0) {
    if (bound.size() > 1 && bound[0] >= 0 && bound[1] >= 0 && bound[0] != bound[1]) {
      result = round_trip_between(bound[0], bound[1]);
    } else if (mine.size() > 1) {
      result = round_trip_between(mine[0], mine[1]);
    }
  }
  transport.barrier();
  return result;
}

double stream_bandwidth(Transport& transport) {
  constexpr std::size_t bytes = 100'000'000;
  constexpr std::size_t count = bytes / sizeof(float);
  constexpr int repeats = 7;
  std::vector<float> a(count, 1.0f);
  const std::vector<float> b(count, 0.5f);
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    transport.barrier();
    const double begin = now_us();
    float* to = a.data();
    const float* from = b.data();
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
    times.push_back(now_us() - begin);
  }
  transport.all_reduce(times.data(), times.size(), DType::f64, ReduceOp::max);
  const double total = 3.0 * static_cast<double>(bytes) * transport.size();
  return total / median(times) * 1e-3;
}

float read_pass(std::span<const float> values) {
  // Sums apart, so that additions do not wait for one another.
  float sums[64] = {};
  for (std::size_t i = 0; i + 64 <= values.size(); i += 64) {
    for (std::size_t j = 0; j < 64; ++j) sums[j] += values[i + j];
  }
  return *std::max_element(sums, sums + 64);
}

}  // namespace lockstep::bench
