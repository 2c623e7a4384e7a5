#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// Gradients of matrices travel as two thin factors, "powersgd:rank=4": of M = gradient + residual,
/// P = mean of M·Q with orthogonal columns, then Q = mean of Mᵀ·P, and the result is P·Qᵀ. A
/// parameter of more dimensions counts as the matrix of its first dimension and all others. Those
/// whose factors would not be smaller, (rows + columns)·rank ≥ rows·columns, are averaged whole.
/// With error feedback, residual ← M − P·Qᵀ.
/// NaN and Inf make every rank raise the same InvalidArgument. For float32 and float64 parameters.
/// Ranks: equal bits need equal processors, as every rank orthogonalises for itself.
/// Source: Vogels, Karimireddy, Jaggi, "PowerSGD", 2019; orthogonal by QR.
struct PowerSgd {
  std::int64_t rank = 4;  ///< columns of the factors, 1 or more
  bool error_feedback = true;
  bool warm_start = true;  ///< begin with the last step's Q, else with a random one

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

}  // namespace lockstep
