#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// A sum of float64 numbers that is rounded once, when value() is called. The result has the same
/// bits for every order of the additions and for every distribution of the numbers over ranks. An
/// object has about 600 bytes.
/// Source: Kulisch, "Computer Arithmetic and Validity", 2013 (the long accumulator).
class ExactSum {
 public:
  void add(double value);
  void add(std::int64_t value);
  /// Adds value · weight without rounding the product.
  void add_product(double value, double weight);

  /// The sum, rounded to nearest. Infinity if it exceeds the range of float64. NaN if a NaN or
  /// infinities of both signs were added.
  double value() const;

 private:
  friend class MetricCombiner;

  /// Normalises every digit except the last to [0, 2^32).
  void carry();

  /// Digit i counts units of 2^(32 i - 1074), the smallest float64 being 2^-1074. The last digit is
  /// signed.
  std::array<std::int64_t, 68> digits_{};
  std::uint32_t additions_ = 0;  ///< since the last carry()
  std::int64_t nans_ = 0;
  std::int64_t positive_infinities_ = 0;
  std::int64_t negative_infinities_ = 0;
};

/// Combines the state of metrics over ranks. compute() passes a MetricCombiner to a metric's
/// combine(), which calls sum(), min() or max() for each part of the metric's state. combine() then
/// runs a second time and receives the values over all ranks.
/// Shapes: the same parts in the same order on every rank, also on a rank without samples.
/// Throws: InvalidArgument, on every rank, if the parts differ between ranks but have equal total
/// sizes.
class MetricCombiner {
 public:
  void sum(double& value);  ///< added in the same order in every run
  void sum(std::int64_t& value);
  void sum(ExactSum& value);
  void min(double& value);
  void min(std::int64_t& value);
  void max(double& value);
  void max(std::int64_t& value);

  /// Tensors are combined element by element. The handle is replaced, so copies keep their values.
  /// Throws: InvalidArgument unless the tensor is dense and of float64 or int64.
  void sum(at::Tensor& values);
  void min(at::Tensor& values);
  void max(at::Tensor& values);

 private:
  friend void combine_over_ranks(const Group& group,
                                 const std::function<void(MetricCombiner&)>& visit);
  enum class Extreme : std::uint8_t { min, max };

  MetricCombiner(int rank, int size) : rank_(rank), size_(size) {}
  void part(std::string_view kind, at::IntArrayRef sizes);
  void exchange(double& value);
  void exchange(std::int64_t& value);
  template <class T>
  void pick(T& value, Extreme extreme);
  template <class Combine>
  void each(at::Tensor& values, std::string_view kind, const Combine& combine);

  int rank_;
  int size_;
  bool combined_ = false;  ///< values_ has the combined values, and is read
  std::uint64_t layout_ = 0;
  std::size_t next_ = 0;  ///< index of the next value to be read from values_
  std::vector<double> values_;
};

/// A metric is a copyable type with
///
///     void add(…);                              // adds samples of this rank; any arguments
///     V value() const;                          // the result, from the state
///     void combine(MetricCombiner& combiner);   // names the parts of the state
///
/// docs/metrics.md has examples.
template <class T>
concept Metric = std::copy_constructible<T> &&
    requires(T metric, const T& seen, MetricCombiner& c) {
  seen.value();
  metric.combine(c);
};

/// Calls visit twice, before and after one all_reduce. In the first call the MetricCombiner reads
/// this rank's state, in the second it writes the state over all ranks. For a number of metrics
/// that is known only at run time; else use compute(). It changes the metrics that visit passes:
/// pass copies.
/// Ranks: all.
void combine_over_ranks(const Group& group, const std::function<void(MetricCombiner&)>& visit);

/// The value of a metric over all ranks, or a std::tuple of the values of several metrics, with one
/// all_reduce. The metrics do not change, and samples can still be added to them. The result is the
/// same on every rank.
/// Ranks: all, with the same metrics in the same order.
template <Metric... M>
requires(sizeof...(M) > 0) auto compute(const Group& group, const M&... metrics) {
  std::tuple<M...> copies(metrics...);
  combine_over_ranks(group, [&](MetricCombiner& combiner) {
    std::apply([&](M&... copy) { (copy.combine(combiner), ...); }, copies);
  });
  if constexpr (sizeof...(M) == 1) {
    return std::get<0>(copies).value();
  } else {
    return std::apply([](const M&... copy) { return std::make_tuple(copy.value()...); }, copies);
  }
}

/// The sum of numbers in float64, rounded once (ExactSum). Integers are added exactly. Tensors may
/// have any real dtype and any shape; each element is added.
class Sum {
 public:
  void add(std::floating_point auto value) { sum_.add(static_cast<double>(value)); }
  void add(std::signed_integral auto value) { sum_.add(static_cast<std::int64_t>(value)); }
  void add(std::unsigned_integral auto value) {
    const auto half = static_cast<std::int64_t>(value / 2);
    sum_.add(half);
    sum_.add(half);
    sum_.add(static_cast<std::int64_t>(value % 2));
  }
  /// Throws: InvalidArgument for a tensor that is undefined or not real.
  void add(const at::Tensor& values);

  /// 0 if nothing was added.
  double value() const { return sum_.value(); }
  void combine(MetricCombiner& combiner) { combiner.sum(sum_); }

 private:
  ExactSum sum_;
};

/// The weighted mean of numbers, Σ weight · value / Σ weight. With the number of samples as weight,
/// batches and ranks may have different sizes. Both sums are ExactSum, so the result has the same
/// bits for every order of samples and every number of ranks.
class Mean {
 public:
  /// weight is typically the number of samples that value is the mean of. A value with weight 0 is
  /// ignored, even if it is NaN.
  /// Throws: InvalidArgument unless the weight is finite and at least 0.
  void add(double value, double weight = 1);
  /// The same for each element of a tensor of a real dtype.
  void add(const at::Tensor& values, double weight = 1);
  /// The same with a weight for each element.
  /// Shapes: weights can be expanded to the shape of values.
  void add(const at::Tensor& values, const at::Tensor& weights);

  /// The mean; NaN if the sum of weights is 0.
  double value() const;
  /// The sum of weights.
  double weight() const { return weight_.value(); }
  void combine(MetricCombiner& combiner);

 private:
  ExactSum sum_;
  ExactSum weight_;
};

/// Quality of a classifier on a number of samples.
struct Score {
  double loss = 0;      ///< mean over the samples
  double accuracy = 0;  ///< fraction of samples whose best class is correct
  double top = 0;       ///< fraction of samples with the correct class among the k best
  std::int64_t samples = 0;
};

/// Loss and accuracy of a classifier. It sums losses and correct answers, so means over batches and
/// ranks of different sizes are exact.
class Tally {
 public:
  Tally() = default;
  /// k: number of best classes that Score::top considers.
  /// Throws: InvalidArgument if k is not positive.
  explicit Tally(std::int64_t k);

  /// Counts one batch. Does not wait for a device: score() does, and one call of 256.
  /// Shapes: mean_loss [], outputs [B, classes], targets [B] of int64.
  void add(const at::Tensor& mean_loss, const at::Tensor& outputs, const at::Tensor& targets);
  /// The same from numbers, for k = 1; right is the number of correct answers.
  void add(double mean_loss, std::int64_t right, std::int64_t samples);

  /// The score over this rank's samples; all fields are 0 if there are none.
  Score score() const;
  /// The score over all ranks' samples, the same on every rank.
  /// Ranks: all.
  Score score(const Group& group) const { return compute(group, *this); }

  Score value() const { return score(); }
  void combine(MetricCombiner& combiner);

 private:
  /// A batch whose numbers a device may still compute.
  struct Unread {
    at::Tensor numbers;  ///< mean loss, correct answers, and those among the k best: float64 [3]
    std::int64_t samples = 0;
  };
  void read();

  std::vector<Unread> unread_;
  std::int64_t k_ = 1;
  ExactSum loss_;
  std::int64_t right_ = 0;
  std::int64_t among_top_ = 0;
  std::int64_t samples_ = 0;
};

/// Samples per second of all ranks: the sum of the ranks' samples divided by the time of the
/// slowest rank in seconds. Each rank passes its own values; the result is the same on every rank.
/// Ranks: all.
double throughput(std::int64_t samples, double seconds, const Group& group);

}  // namespace lockstep
