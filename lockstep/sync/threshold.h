#pragma once

#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// All elements of some magnitude travel, "threshold:0.001": those of |gradient + residual| ≥
/// value, as values with their indices; how many may differ from rank to rank.
/// values[i] = Σ_r (1/N)·sent_r[i], in rank order. When the ranks' picks together are not smaller
/// than the bucket, that step's bucket is averaged whole, on all ranks. With error feedback what
/// was not sent is added to the next step's gradient: residual ← (gradient + residual) − sent. NaN
/// and Inf, always picked, make every rank raise the same InvalidArgument. For float32 and float64
/// parameters. Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud
/// Computing", 2015, with values instead of signs.
struct Threshold {
  double value = 0.001;  ///< least magnitude that is sent, 0 or more
  bool error_feedback = true;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

}  // namespace lockstep
