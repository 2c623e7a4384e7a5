#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// Every rank trains alone, and parameters are averaged after every period-th step,
/// "local_sgd:period=8". Before evaluation or a checkpoint, synchronize() the parameters.
/// Source: Stich, "Local SGD Converges Fast and Communicates Little", 2019.
struct LocalSgd {
  std::int64_t period = 8;  ///< steps from one averaging to the next, 1 or more

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
};

/// Gradients are averaged in the first steps, then it is local SGD,
/// "post_local_sgd:start=100,period=8".
/// Source: Lin, Stich, Patel, Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2020.
struct PostLocalSgd {
  std::int64_t start = 100;  ///< the first step that is local
  std::int64_t period = 8;   ///< from then on

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
};

}  // namespace lockstep
