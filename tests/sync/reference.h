#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/text.h"
#include "lockstep/kernels/reference.h"
#include "lockstep/spawn.h"
#include "lockstep/sync/bucket.h"
#include "lockstep/sync/exchange.h"
#include "lockstep/sync/layout.h"
#include "lockstep/sync/strategy.h"

// What strategies must give, in plain code over the vectors of all ranks held in one process.

namespace lockstep::testing {

/// What this rank has given to collectives.
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

/// All stages of one step.
inline void advance(Exchange& exchange, std::int64_t step, Bucket& bucket, const Group& group) {
  for (int stage = 0;; ++stage) {
    auto work = exchange.advance({.step = step, .stage = stage}, bucket, group);
    if (!work.pending()) return;
    work.wait();
  }
}

/// The largest |got - expected|.
template <class T>
double largest_error(std::span<const T> got, const std::vector<double>& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(got[i]) - expected[i]));
  }
  return largest;
}

/// What a strategy must give for all ranks' gradients at a step. It may remember.
template <class T>
using Reference = std::function<std::vector<double>(const Vectors<T>& gradients, int step)>;

struct Case {
  Kind kind;
  std::size_t n;
};

/// Sizes and kinds that every strategy must cope with; a million elements once.
inline std::vector<Case> all_cases(int ranks) {
  std::vector<Case> cases;
  for (const Kind kind : kinds) {
    for (const std::size_t n : {1, 2, 63, 64, 65, 1000}) cases.push_back({kind, n});
  }
  if (ranks == 2) cases.push_back({Kind::normal, 1'000'000});
  return cases;
}

/// Runs some steps of the strategy on every case and compares every rank's result. The tolerance is
/// relative to the largest number that went in; zero stands for equality.
template <class T>
void compare(int ranks, const Strategy& strategy, const std::vector<Case>& cases,
             const std::function<Reference<T>(std::size_t n)>& reference_of, double tolerance) {
  constexpr int steps = 3;
  std::vector<std::vector<std::vector<double>>> expected;
  std::vector<double> allowed;
  for (const auto& c : cases) {
    const auto reference = reference_of(c.n);
    auto& results = expected.emplace_back();
    double largest = 0;
    for (int step = 0; step < steps; ++step) {
      Vectors<T> gradients;
      for (int rank = 0; rank < ranks; ++rank) {
        gradients.push_back(gradient<T>(c.kind, c.n, rank, step));
        for (const T value : gradients.back())
          largest = std::max<double>(largest, std::fabs(value));
      }
      results.push_back(reference(gradients, step));
    }
    // Denormals have no relative precision.
    const double least = 8 * static_cast<double>(std::numeric_limits<T>::denorm_min());
    allowed.push_back(tolerance > 0 ? tolerance * largest + least : 0);
  }
  spawn(ranks, [&](const Group& group) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto [kind, n] = cases[i];
      Bucket bucket(0, n, dtype_of<T>, {}, group);
      const auto exchange = strategy.exchange(bucket);
      const auto values = lockstep::detail::elements<T>(bucket.values());
      for (int step = 0; step < steps; ++step) {
        std::ranges::copy(gradient<T>(kind, n, group.rank(), step), values.begin());
        advance(*exchange, step, bucket, group);
        EXPECT_LE(largest_error<T>(values, expected[i][static_cast<std::size_t>(step)]), allowed[i])
            << strategy.text() << ", kind " << static_cast<int>(kind) << ", " << n
            << " elements, step " << step << ", rank " << group.rank() << " of " << ranks;
      }
    }
  });
}

inline constexpr int rank_counts[] = {1, 2, 3, 4, 7};

}  // namespace lockstep::testing
