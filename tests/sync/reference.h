#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "bench/reference/kernels.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "group/tensors.h"
#include "lockstep/denormals.h"
#include "lockstep/exchange.h"
#include "lockstep/init.h"
#include "lockstep/strategies.h"
#include "lockstep/strategy.h"
#include "sync/bucket_layout.h"
#include "tests/on_ranks.h"

// Expected results of strategies, in plain code over the vectors of all ranks held in one process.

namespace lockstep::testing {

/// Runs fn on n ranks, each a thread that computes alone.
inline void on_ranks(int n, const std::function<void(const Group&)>& fn) {
  spawn(n, [&](const Group& world) {
    at::set_num_threads(1);
    fn(world);
  });
}

/// Bytes that this rank has sent in collectives.
inline std::uint64_t bytes_sent(const Group& group) {
  std::uint64_t bytes = 0;
  for (const auto& row : group.statistics()) bytes += row.bytes;
  return bytes;
}

template <class T>
using Vectors = std::vector<std::vector<T>>;  ///< one for each rank

template <class T>
constexpr at::ScalarType dtype_of = sizeof(T) == 4 ? at::kFloat : at::kDouble;

enum class Kind { normal, ties, zeros, denormal, huge };
inline constexpr Kind kinds[] = {Kind::normal, Kind::ties, Kind::zeros, Kind::denormal, Kind::huge};

/// Rank's gradient at a step. Numbers that repeat are cheap to make, and no two ranks' are alike.
template <class T>
std::vector<T> gradient(Kind kind, std::size_t n, int rank, int step) {
  const lockstep::detail::DenormalsGuard kept(false);
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + step));
  std::normal_distribution<T> normal;
  std::vector<T> table(4093);
  for (auto& value : table) value = normal(random);
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    // Every round through the table is scaled a little, so that few values are equal.
    const auto value = table[i % table.size()] * (1 + T(1e-4) * static_cast<T>(i / table.size()));
    switch (kind) {
      case Kind::normal:
        values[i] = value;
        break;
      case Kind::ties:
        values[i] = std::round(value);
        break;
      case Kind::zeros:
        break;
      case Kind::denormal:
        values[i] = value * std::numeric_limits<T>::min() / 8;
        break;
      case Kind::huge:
        values[i] = i == n / 2 ? T(1e30) : value;
        break;
    }
  }
  return values;
}

/// All collectives of one step.
inline void advance(Exchange& exchange, std::int64_t step, Bucket& bucket, const Group& group) {
  auto task = exchange.exchange(step, bucket, group);
  for (auto work = task.advance(); work.pending(); work = task.advance()) work.wait();
}

/// The first element that is farther from what is expected than allowed, or that is no number.
template <class T>
std::optional<std::size_t> first_wrong(std::span<const T> got, const std::vector<double>& expected,
                                       const std::vector<double>& allowed) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (!(std::fabs(static_cast<double>(got[i]) - expected[i]) <= allowed[i])) return i;
  return std::nullopt;
}

/// Computes a strategy's expected result from all ranks' gradients at a step. May hold state.
template <class T>
using Reference = std::function<std::vector<double>(const Vectors<T>& gradients, int step)>;

struct Case {
  Kind kind;
  std::size_t n;
};

/// Sizes and kinds that every strategy must cope with; a hundred thousand elements once.
inline std::vector<Case> all_cases(int ranks) {
  std::vector<Case> cases;
  for (const Kind kind : kinds) {
    for (const std::size_t n : {1, 2, 63, 64, 65, 1000}) cases.push_back({kind, n});
  }
  if (ranks == 2) cases.push_back({Kind::normal, 100'000});
  return cases;
}

/// The magnitude of each element, or the largest of those that are encoded together.
inline std::vector<double> scales(const std::vector<double>& magnitudes, std::size_t together) {
  std::vector<double> scales(magnitudes.size());
  for (std::size_t begin = 0; begin < scales.size(); begin += together) {
    const auto count = std::min(together, scales.size() - begin);
    const auto largest = std::ranges::max(std::span(magnitudes).subspan(begin, count));
    std::ranges::fill(std::span(scales).subspan(begin, count), largest);
  }
  return scales;
}

/// Runs some steps of the strategy on every case and compares every rank's result, while ranks and
/// the reference flush denormals, unless said otherwise, and while they keep them. The tolerance is
/// relative to what went into an element, or into those that are encoded together with it; zero
/// stands for equality.
template <class T>
void compare(int ranks, const Strategy& strategy, std::vector<Case> cases,
             const std::function<Reference<T>(std::size_t n)>& reference_of, double tolerance,
             std::size_t together = 1, bool flushed_too = true) {
  for (const bool flush : {true, false}) {
    if (flush && !(lockstep::detail::can_flush_denormals && flushed_too)) continue;
    const lockstep::detail::DenormalsGuard guard(flush);
    constexpr int steps = 3;
    std::vector<std::vector<std::vector<double>>> expected;
    std::vector<std::vector<double>> allowed;
    for (const auto& c : cases) {
      const auto reference = reference_of(c.n);
      auto& results = expected.emplace_back();
      std::vector<double> magnitudes(c.n);
      for (int step = 0; step < steps; ++step) {
        Vectors<T> gradients;
        for (int rank = 0; rank < ranks; ++rank) {
          gradients.push_back(gradient<T>(c.kind, c.n, rank, step));
          for (std::size_t i = 0; i < c.n; ++i) magnitudes[i] += std::fabs(gradients.back()[i]);
        }
        results.push_back(reference(gradients, step));
      }
      // Denormals have no relative precision, and a reference in double keeps those of float32.
      const double denormal = static_cast<double>(std::numeric_limits<T>::denorm_min());
      const double least =
          flush ? ranks * steps * static_cast<double>(std::numeric_limits<T>::min()) : 8 * denormal;
      allowed.push_back(scales(magnitudes, together));
      for (double& of_element : allowed.back())
        of_element = tolerance > 0 || flush ? tolerance * of_element + least : 0;
    }
    const auto run = [&](const Group& group) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto [kind, n] = cases[i];
        Bucket bucket(0, n, dtype_of<T>, {}, group);
        const auto exchange = strategy.exchange(bucket);
        const auto values = lockstep::detail::elements<T>(bucket.values());
        for (int step = 0; step < steps; ++step) {
          std::ranges::copy(gradient<T>(kind, n, group.rank(), step), values.begin());
          advance(*exchange, step, bucket, group);
          const auto& wanted = expected[i][static_cast<std::size_t>(step)];
          const auto wrong = first_wrong<T>(values, wanted, allowed[i]);
          EXPECT_FALSE(wrong.has_value())
              << "element " << *wrong << " is " << values[*wrong] << ", expected " << wanted[*wrong]
              << ": " << strategy.text() << ", kind " << static_cast<int>(kind) << ", " << n
              << " elements, step " << step << ", rank " << group.rank() << " of " << ranks
              << ", denormals " << lockstep::detail::denormals_text(flush);
        }
      }
    };
    spawn(ranks, run, {.flush_denormals = flush});
    std::erase_if(cases, [](const Case& c) { return c.n > 1000; });  // once is enough
  }
}

inline constexpr int rank_counts[] = {1, 2, 3, 4, 7};

}  // namespace lockstep::testing
