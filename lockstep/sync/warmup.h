#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/sync/exchange.h"
#include "lockstep/sync/strategy.h"

namespace lockstep {

/// Gradients are averaged at full precision in the first steps, then by another strategy, which
/// counts its own steps from there: "warmup:100:topk:0.01".
struct Warmup {
  Strategy strategy;
  std::int64_t steps;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or what the strategy throws.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
  bool exchanges_every_gradient() const { return strategy.exchanges_every_gradient(); }
};

inline Strategy warmup(Strategy strategy, std::int64_t steps) {
  return Warmup{.strategy = std::move(strategy), .steps = steps};
}

}  // namespace lockstep
