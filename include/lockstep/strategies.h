#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/exchange.h"
#include "lockstep/strategy.h"

namespace lockstep::inline v0_2 {

/// The mean over ranks at full precision, "fp32": one all_reduce a bucket, in the gradients' own
/// dtype. values[i] = (1/N) Σ_r values_r[i], summed in rank order.
struct AllReduce {
  std::string text() const { return "fp32"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The mean over ranks of gradients that are sent as float16 before and after the sum, "fp16" or
/// "fp16:clip=100". It is values[i] = f16(Σ_r f16(clamp(values_r[i], -clip, clip) / N)), summed in
/// float32 in rank order. NaN and Inf are passed on. For float32 parameters.
struct Fp16 {
  double clip = 0;        ///< largest magnitude of a gradient; 0 leaves all as they are
  bool predivide = true;  ///< divide by N before rounding; else after the sum

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket that is not float32.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The same in bfloat16, "bf16", which has float32's range: values[i] =
/// bf16(Σ_r bf16(values_r[i] / N)).
struct Bf16 {
  std::string text() const { return "bf16"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The mean over ranks of gradients that are sent as 8-bit codes, "int8", with a scale for every
/// 512 elements. Each rank sums a part of all ranks' decoded gradients in rank order, and sends its
/// mean as codes again. Ranks that share memory compute the same bits in place. Their codes stay in
/// the processor, and are counted as if they were sent. With error feedback the rounding error of a
/// rank's own codes is added to its next gradient: residual ← (gradient + residual) − decoded.
/// NaN and Inf make every rank raise the same InvalidArgument; of gradients that are refused, parts
/// may be averaged already. For float32 parameters.
/// Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016; error feedback
/// as in Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD", 2019.
struct Int8 {
  bool error_feedback = true;

  std::string text() const { return error_feedback ? "int8" : "int8:feedback=off"; }
  /// Throws: InvalidArgument for a bucket that is not float32.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// Only the largest elements are sent, "topk:0.01", as values with their indices. Of a bucket whose
/// parameters have n elements, they are the k = max(1, ⌈ratio·n⌉) of largest magnitude, ties broken
/// by lower index. values[i] = Σ_r (1/N)·sent_r[i], in rank order. With error feedback elements
/// that were not sent are added to the next step's gradient: residual ← (gradient + residual) −
/// sent. NaN and Inf, always among the largest, make every rank raise the same InvalidArgument. For
/// float32 and float64 parameters.
/// Source: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", 2018, arXiv 1712.01887.
struct TopK {
  double ratio = 0.01;  ///< part of the elements that is sent, in (0, 1]
  bool error_feedback = true;
  /// Steps of Deep Gradient Compression's warm-up; 0 for none. It has four parts of equal length
  /// that send 25 %, 6.25 %, 1.5625 % and 0.390625 %, but never less than ratio.
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

/// All elements of some magnitude are sent, "threshold:0.001": those of |gradient + residual| ≥
/// value, as values with their indices. Their number may differ from rank to rank. values[i] = Σ_r
/// (1/N)·sent_r[i], in rank order. When the ranks' picks together are not smaller than the bucket,
/// that step's bucket is averaged whole, on all ranks. With error feedback elements that were not
/// sent are added to the next step's gradient: residual ← (gradient + residual) − sent. NaN and
/// Inf, always picked, make every rank raise the same InvalidArgument. For float32 and float64
/// parameters.
/// Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", 2015,
/// with values instead of signs.
struct Threshold {
  double value = 0.001;  ///< least magnitude that is sent, 0 or more
  bool error_feedback = true;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// Gradients of matrices are sent as two thin factors, "power_sgd:rank=4". Of M = gradient +
/// residual, P = mean of M·Q with orthogonal columns, then Q = mean of Mᵀ·P, and the result is
/// P·Qᵀ. A parameter of more dimensions counts as the matrix of its first dimension and all others.
/// Matrices whose factors would not be smaller, (rows + columns)·rank ≥ rows·columns, are averaged
/// whole. With error feedback, residual ← M − P·Qᵀ.
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

/// One bucket a step is averaged, in turn, "partial_update" or "partial_update:of=gradients"; every
/// rank goes its own way with the others. After as many steps as there are buckets each has been
/// averaged once. Before evaluation or a checkpoint, synchronize() the parameters.
/// Source: Apache SINGA's partial update, of parameters in version 3, of gradients before.
struct PartialUpdate {
  SyncTarget of = SyncTarget::parameters;  ///< parameters or gradients

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
};

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

/// The changes that the ranks' optimizers made are combined instead of averaged, "adasum":
/// orthogonal changes add up, and equal ones count once. Two ranks' changes a and b of a parameter
/// become (1 − a·b / 2|a|²) a + (1 − a·b / 2|b|²) b. The changes of n ranks are combined in a tree
/// whose left side has ⌈n/2⌉ ranks. For powers of two, the only sizes that Horovod takes, it is
/// Horovod's tree. A change of zero leaves the other as it is. Parameters = those before the step +
/// the combined change. NaN and Inf are passed on. For float32 and float64 parameters.
/// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, arXiv
/// 2006.02924. Horovod adds squares below 10⁻⁸ plainly; here the formula holds for them too.
struct Adasum {
  std::string text() const { return "adasum"; }
  /// Remembers the bucket's parameters, which must be equal on all ranks by now.
  /// Throws: InvalidArgument for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t, std::size_t, std::size_t) const { return SyncTarget::parameters; }
};

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
