#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/averages.h"
#include "lockstep/exchange.h"
#include "lockstep/strategy.h"

namespace lockstep::inline v0_2 {

/// Gradients of matrices are sent as two thin factors, "power_sgd:rank=4". With M = gradient +
/// residual: P = mean of M·Q, orthogonalised; Q = mean of Mᵀ·P; result = P·Qᵀ. A parameter with
/// more dimensions counts as a matrix with one row for each index of its outermost one in memory.
/// A matrix is averaged whole if its factors would not be smaller: (rows + columns)·rank ≥
/// rows·columns. With error feedback, residual ← M − P·Qᵀ.
/// NaN and Inf make every rank raise the same InvalidArgument. For float32 and float64 parameters.
/// Every rank orthogonalises P itself, so ranks have the same bits only on processors of the same
/// type.
/// Source: Vogels, Karimireddy, Jaggi, "PowerSGD", 2019; orthogonalised by QR.
struct PowerSgd {
  std::int64_t rank = 4;  ///< columns of the factors, 1 or more
  bool error_feedback = true;
  bool warm_start = true;  ///< start from the last step's Q, else from a random one

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// Each step averages one bucket, in turn, "partial_update" or "partial_update:of=gradients". The
/// other buckets are not exchanged, so replicas differ. After as many steps as there are buckets,
/// each bucket has been averaged once. Call synchronize() before evaluation or a checkpoint.
/// Source: Apache SINGA's partial update, of parameters in version 3, of gradients before.
struct PartialUpdate {
  SyncTarget of = SyncTarget::parameters;  ///< what is averaged: parameters or gradients

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
  bool exchanges_parameters() const { return of == SyncTarget::parameters; }
};

/// Ranks train independently, and their parameters are averaged after every period-th step,
/// "local_sgd:period=8". Call synchronize() before evaluation or a checkpoint.
/// Source: Stich, "Local SGD Converges Fast and Communicates Little", 2019.
struct LocalSgd {
  std::int64_t period = 8;  ///< steps between two averagings, 1 or more

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
};

/// Gradients are averaged in the first `start` steps. After that it is LocalSgd,
/// "post_local_sgd:start=100,period=8".
/// Source: Lin, Stich, Patel, Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2020.
struct PostLocalSgd {
  std::int64_t start = 100;  ///< index of the first step without averaged gradients
  std::int64_t period = 8;   ///< of LocalSgd

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
};

/// The updates that the ranks' optimizers made are combined instead of averaged, "adasum":
/// orthogonal updates add up, and equal updates count once. The updates a and b of a parameter on
/// two ranks become (1 − a·b / 2|a|²) a + (1 − a·b / 2|b|²) b; if one is zero, the result is the
/// other. The updates of n ranks are combined in a binary tree whose left side has ⌈n/2⌉ ranks. For
/// powers of two, the only sizes that Horovod supports, this is Horovod's tree. Parameters =
/// parameters before the step + combined update. NaN and Inf are passed on. For float32 and float64
/// parameters.
/// With "adasum:of=gradients", the gradients are combined the same way before the optimizer's step.
/// Under SGD without momentum this gives the same parameters, up to rounding. Ranks have no
/// weights.
/// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, arXiv
/// 2006.02924. Horovod adds the updates if a square is below 10⁻⁸; Lockstep uses the formula for
/// all updates.
struct Adasum {
  SyncTarget of = SyncTarget::parameters;  ///< what is combined: parameters' updates or gradients

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// For updates, stores a copy of the bucket's parameters, which must be equal on all ranks at
  /// this time.
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t, std::size_t, std::size_t) const { return of; }
  bool exchanges_every_gradient() const { return of == SyncTarget::gradients; }
  bool exchanges_parameters() const { return of == SyncTarget::parameters; }
  bool takes_weights() const { return false; }
};

/// Gradients are averaged at full precision in the first `steps` steps, then by `strategy`, which
/// counts its own steps from 0: "warmup:100:topk:0.01".
struct Warmup {
  Strategy strategy;
  std::int64_t steps;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does; the exceptions of the strategy.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
  bool exchanges_every_gradient() const { return strategy.exchanges_every_gradient(); }
  bool exchanges_parameters() const { return strategy.exchanges_parameters(); }
  bool takes_weights() const { return strategy.takes_weights(); }
};

inline Strategy warmup(Strategy strategy, std::int64_t steps) {
  return Warmup{.strategy = std::move(strategy), .steps = steps};
}

}  // namespace lockstep
