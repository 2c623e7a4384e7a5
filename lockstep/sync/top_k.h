#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// Only the largest elements travel, "topk:0.01": of each bucket, whose parameters have n
/// elements, the k = max(1, ⌈ratio·n⌉) of largest magnitude, ties broken by lower index, as values
/// with their indices. values[i] = Σ_r (1/N)·sent_r[i], in rank order. With error feedback what was
/// not sent is added to the next step's gradient: residual ← (gradient + residual) − sent. NaN and
/// Inf, always among the largest, make every rank raise the same InvalidArgument. For float32 and
/// float64 parameters. Source: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", 2018, arXiv
/// 1712.01887.
struct TopK {
  double ratio = 0.01;  ///< part of the elements that is sent, in (0, 1]
  bool error_feedback = true;
  /// Steps of Deep Gradient Compression's warm-up: four parts of equal length in which 25 %,
  /// 6.25 %, 1.5625 % and 0.390625 % are sent, but never less than ratio. 0 for none.
  std::int64_t ramp = 0;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;

  /// The part that is sent at a step.
  double ratio_at(std::int64_t step) const;
  /// The number of elements, of n, that are sent at a step.
  std::size_t k_at(std::int64_t step, std::size_t n) const;
};

}  // namespace lockstep
