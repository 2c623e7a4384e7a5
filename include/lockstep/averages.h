#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

// Strategies that average elements one by one, whatever parameters they belong to. The functions
// with a Bucket need LibTorch. The others do not, and the interface for C has these strategies.

namespace lockstep::inline v0_2 {

class Bucket;
class Exchange;

/// The mean over ranks at full precision, "fp32": one all_reduce a bucket, in the gradients' own
/// dtype. values[i] = (1/N) Σ_r values_r[i], over N ranks, on one host summed in rank order.
struct AllReduce {
  std::string text() const { return "fp32"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The mean over ranks of gradients that are sent as float16 before and after the sum, "fp16" or
/// "fp16:clip=100". values[i] = f16(Σ_r f16(clamp(values_r[i], -clip, clip) / N)), summed in
/// float32 in rank order. NaN and Inf are passed on. For float32 parameters.
struct Fp16 {
  double clip = 0;        ///< largest magnitude of a gradient element; 0 disables clipping
  bool predivide = true;  ///< divide by the number of ranks before rounding, else after the sum

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket that is not float32.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The mean over ranks of gradients that are sent as bfloat16, "bf16", which has the range of
/// float32. values[i] = bf16(Σ_r bf16(values_r[i] / N)). For float32 parameters.
struct Bf16 {
  std::string text() const { return "bf16"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// The mean over ranks of gradients that are sent as 8-bit codes, "int8", with a scale for every
/// 512 elements. Each rank sums its part of all ranks' decoded gradients in rank order, and sends
/// the mean of that part as codes again. Ranks that share memory compute the same bits in place and
/// store no codes; statistics count the codes as if they were sent. With error feedback, the
/// rounding error of a rank's own codes is added to its next gradient: residual ← (gradient +
/// residual) − decoded. If a gradient has NaN or Inf, every rank raises the same InvalidArgument;
/// parts of the gradients may be averaged by then. For float32 parameters.
/// Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016; error feedback
/// as in Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD", 2019.
struct Int8 {
  bool error_feedback = true;

  std::string text() const { return error_feedback ? "int8" : "int8:feedback=off"; }
  /// Throws: InvalidArgument for a bucket that is not float32.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

/// Only the largest elements are sent, "topk:0.01", as values with their indices. A bucket with n
/// elements sends the k = max(1, ⌈ratio·n⌉) elements of largest magnitude, and of equal ones those
/// with the lower index. values[i] = Σ_r (1/N)·sent_r[i], in rank order. With error feedback,
/// elements that were not sent are added to the next step's gradient: residual ← (gradient +
/// residual) − sent. NaN and Inf count as the largest; they make every rank raise the same
/// InvalidArgument. For float32 and float64 parameters.
/// Source: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", 2018, arXiv 1712.01887.
struct TopK {
  double ratio = 0.01;  ///< fraction of the elements that is sent, in (0, 1]
  bool error_feedback = true;
  /// Steps of Deep Gradient Compression's warm-up; 0 disables it. Its four parts of equal length
  /// send 25 %, 6.25 %, 1.5625 % and 0.390625 % of the elements, but never less than ratio.
  std::int64_t ramp = 0;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;

  /// The fraction of the elements that is sent at a step.
  double ratio_at(std::int64_t step) const;
  /// The number of elements, out of n, that are sent at a step.
  std::size_t k_at(std::int64_t step, std::size_t n) const;
};

/// All elements with |gradient + residual| ≥ value are sent, "threshold:0.001", as values with
/// their indices. Their number may differ between ranks. values[i] = Σ_r (1/N)·sent_r[i], in rank
/// order. If the selected elements of all ranks together need more bytes than the bucket, all ranks
/// average the whole bucket in that step. With error feedback, elements that were not
/// sent are added to the next step's gradient: residual ← (gradient + residual) − sent. NaN and Inf
/// are always selected; they make every rank raise the same InvalidArgument. For float32 and
/// float64 parameters.
/// Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", 2015,
/// with values instead of signs.
struct Threshold {
  double value = 0.001;  ///< smallest magnitude that is sent, 0 or more
  bool error_feedback = true;

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  /// Throws: InvalidArgument as check() does, or for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

}  // namespace lockstep
