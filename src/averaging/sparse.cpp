#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "averaging/average.h"
#include "averaging/parse.h"
#include "kernels/select_largest.h"
#include "lockstep/denormals.h"

// Averages that send some elements of each rank with their indices.

namespace lockstep::inline v0_2 {

double TopK::ratio_at(std::int64_t step) const {
  if (step >= ramp) return ratio;
  const auto part = static_cast<int>(4 * step / ramp);
  return std::max(ratio, std::pow(0.25, part + 1));
}

std::size_t TopK::k_at(std::int64_t step, std::size_t n) const {
  // 0.07 · 100 is rounded to a little more than 7; its ceiling must still be 7.
  constexpr double rounding = 4 * std::numeric_limits<double>::epsilon();
  const double exact = ratio_at(step) * static_cast<double>(n);
  const auto k = static_cast<std::size_t>(std::ceil(exact * (1 - rounding)));
  return std::min(n, std::max<std::size_t>(k, 1));
}

}  // namespace lockstep

namespace lockstep::inline v0_2::averaging {
namespace {

/// Message layout of selected elements: all values, all indices, zeros up to a multiple of eight
/// bytes.
template <class T>
class SparseRecord {
 public:
  static constexpr std::size_t element_bytes = sizeof(T) + sizeof(std::uint32_t);
  static constexpr std::size_t bytes(std::size_t count) {
    return (count * element_bytes + 7) / 8 * 8;
  }

  /// The record of count picks in memory of at least bytes(count), aligned to eight bytes.
  static kernels::Picks<T> at(std::byte* memory, std::size_t count) {
    return {.indices = {reinterpret_cast<std::uint32_t*>(memory + count * sizeof(T)), count},
            .values = {reinterpret_cast<T*>(memory), count}};
  }
};

/// The index of the first value that is not finite.
template <class T>
std::optional<std::size_t> first_not_finite(std::span<const T> values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](T value) { return !std::isfinite(value); });
  if (found == values.end()) return std::nullopt;
  return static_cast<std::size_t>(found - values.begin());
}

/// Sets elements of a residual that are not finite to zero. Otherwise a rejected gradient would be
/// sent at the next step.
template <class T>
void drop_not_finite(std::span<T> residual) {
  std::replace_if(
      residual.begin(), residual.end(), [](T value) { return !std::isfinite(value); }, T{0});
}

template <class T>
class TopKAverage final : public Average {
 public:
  TopKAverage(const TopK& strategy, const Averaged& averaged)
      : Average(strategy.error_feedback, averaged), strategy_(strategy) {}

  ExchangeTask exchange(std::int64_t step, Elements elements, Communicator& group) override {
    const auto gradient = elements.as<T>();
    allocate_buffers(strategy_.k_at(step, arrays_.numel), group);
    select(gradient);
    co_await all_gather(group, gathered_, sent_);
    add_picks(gradient, group);
  }

 private:
  using Record = SparseRecord<T>;

  /// Allocates memory for k picks of every rank, unless the previous step had the same k.
  void allocate_buffers(std::size_t k, Communicator& group) {
    if (space_ && space_->largest_k() == k) return;
    space_.emplace(k);
    sent_ = Buffer(group, Record::bytes(k));
    sent_.fill_with_zeros();
    gathered_ = Buffer(group, Record::bytes(k) * static_cast<std::size_t>(group.size()));
  }

  void select(std::span<T> gradient) {
    const auto picks = Record::at(sent_.data(), space_->largest_k());
    const auto residual = residual_.as<T>();
    kernels::select_top(gradient, residual, *space_, picks);
    if (residual_.defined()) {
      for (const auto index : picks.indices) residual[index] = 0;
    } else {
      std::fill(gradient.begin(), gradient.end(), T{0});
    }
  }

  void add_picks(std::span<T> gradient, const Communicator& group) {
    const int ranks = group.size();
    const std::size_t k = space_->largest_k();
    const auto picks_of = [&](int rank) {
      return Record::at(gathered_.data() + Record::bytes(k) * static_cast<std::size_t>(rank), k);
    };
    for (int rank = 0; rank < ranks; ++rank) {
      const auto picks = picks_of(rank);
      const auto bad = first_not_finite<T>(picks.values);
      if (!bad) continue;
      if (residual_.defined()) take_back(picks_of(group.rank()));
      refuse_not_finite("topk", arrays_.name_at(picks.indices[*bad]), rank, group);
    }
    const T share = T{1} / static_cast<T>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto picks = picks_of(rank);
      kernels::scatter_add<T>(gradient, picks.indices, picks.values, share);
    }
  }

  /// Returns the picks of a refused step to the residual: no rank has added them.
  void take_back(const kernels::Picks<T>& own) {
    kernels::scatter_add<T>(residual_.as<T>(), own.indices, own.values, T{1});
    drop_not_finite(residual_.as<T>());
  }

  TopK strategy_;
  std::optional<kernels::SelectSpace<T>> space_;
  Buffer sent_;
  Buffer gathered_;
};

template <class T>
class ThresholdAverage final : public Average {
 public:
  ThresholdAverage(const Threshold& strategy, const Averaged& averaged)
      : Average(strategy.error_feedback, averaged),
        threshold_(static_cast<T>(strategy.value)),
        max_picks_(averaged.elements.count * sizeof(T) / Record::element_bytes) {}

  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    const auto gradient = elements.as<T>();
    allocate_buffers(group);
    select(gradient);
    co_await all_gather(group, reports_, report_);
    expect_finite(group);
    if (sends_dense()) {
      if (residual_.defined()) {
        const auto residual = residual_.as<T>();
        std::copy(residual.begin(), residual.end(), gradient.begin());
        std::fill(residual.begin(), residual.end(), T{0});
      }
      co_await group.all_reduce(elements.data, elements.count, elements.dtype, ReduceOp::avg,
                                issue_of(elements));
    } else {
      pack_picks(gradient, static_cast<std::size_t>(group.rank()));
      co_await all_gather(group, gathered_, sent_, record_bytes_);
      add_picks(gradient, group.size());
    }
  }

 private:
  using Record = SparseRecord<T>;

  /// A rank's message before its picks.
  struct Report {
    std::int64_t picks;
    std::int64_t not_finite;  ///< 1 + the index of the first element that is not finite, or 0
  };

  void allocate_buffers(Communicator& group) {
    if (reports_.defined()) return;
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t capacity = max_picks_ + kernels::select_slack;
    indices_.resize(capacity);
    sent_ = Buffer(group, Record::bytes(capacity));
    // Every rank's record may be padded by less than eight bytes.
    gathered_ = Buffer(group, Record::bytes(max_picks_) + 8 * ranks);
    report_ = Buffer(group, sizeof(Report));
    reports_ = Buffer(group, sizeof(Report) * ranks);
    record_bytes_.resize(ranks);
  }

  void select(std::span<T> gradient) {
    const kernels::Picks<T> picks{.indices = indices_,
                                  .values = {reinterpret_cast<T*>(sent_.data()), indices_.size()}};
    const auto found = kernels::select_above(gradient, residual_.as<T>(), threshold_, picks);
    auto& report = report_.template as<Report>()[0];
    report.picks = static_cast<std::int64_t>(found);
    report.not_finite = 0;
    if (found <= max_picks_) {
      if (const auto bad = first_not_finite<T>(picks.values.first(found))) {
        report.not_finite = 1 + static_cast<std::int64_t>(picks.indices[*bad]);
      }
    } else if (const auto bad =
                   first_not_finite<T>(residual_.defined() ? residual_.as<T>() : gradient)) {
      report.not_finite = 1 + static_cast<std::int64_t>(*bad);
    }
  }

  std::span<const Report> reports() const { return reports_.template as<const Report>(); }

  void expect_finite(const Communicator& group) const {
    const auto all = reports();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto bad = all[rank].not_finite;
      if (bad == 0) continue;
      drop_not_finite(residual_.as<T>());
      refuse_not_finite("threshold", arrays_.name_at(static_cast<std::size_t>(bad - 1)),
                        static_cast<int>(rank), group);
    }
  }

  bool sends_dense() const {
    std::size_t total = 0;
    for (const auto& report : reports()) total += static_cast<std::size_t>(report.picks);
    return total > max_picks_;
  }

  /// Writes this rank's record, and sets the bytes of all ranks' records.
  void pack_picks(std::span<T> gradient, std::size_t rank) {
    const auto all = reports();
    for (std::size_t r = 0; r < all.size(); ++r) {
      record_bytes_[r] = Record::bytes(static_cast<std::size_t>(all[r].picks));
    }
    const auto count = static_cast<std::size_t>(all[rank].picks);
    const auto record = Record::at(sent_.data(), count);
    std::copy_n(indices_.begin(), count, record.indices.begin());
    if (residual_.defined()) {
      const auto residual = residual_.as<T>();
      for (const auto index : record.indices) residual[index] = 0;
    } else {
      std::fill(gradient.begin(), gradient.end(), T{0});
    }
  }

  void add_picks(std::span<T> gradient, int ranks) {
    const T share = T{1} / static_cast<T>(ranks);
    auto* record = gathered_.data();
    for (const auto& report : reports()) {
      const auto number = static_cast<std::size_t>(report.picks);
      const auto picks = Record::at(record, number);
      kernels::scatter_add<T>(gradient, picks.indices, picks.values, share);
      record += Record::bytes(number);
    }
  }

  T threshold_;
  std::size_t max_picks_;  ///< with more picks on all ranks, the dense elements are smaller
  std::vector<std::uint32_t> indices_;
  Buffer sent_;
  Buffer gathered_;
  Buffer report_;
  Buffer reports_;
  std::vector<std::size_t> record_bytes_;
};

}  // namespace

std::unique_ptr<Average> create(const TopK& strategy, const Averaged& averaged) {
  strategy.check();
  expect_dtype("topk", averaged, {DType::f32, DType::f64});
  if (averaged.elements.dtype == DType::f64)
    return std::make_unique<TopKAverage<double>>(strategy, averaged);
  return std::make_unique<TopKAverage<float>>(strategy, averaged);
}

std::unique_ptr<Average> create(const Threshold& strategy, const Averaged& averaged) {
  strategy.check();
  expect_dtype("threshold", averaged, {DType::f32, DType::f64});
  if (averaged.elements.dtype == DType::f64)
    return std::make_unique<ThresholdAverage<double>>(strategy, averaged);
  // A threshold that rounds to 0 would send every element.
  const bool is_zero = detail::magnitude(strategy.value) == 0;
  detail::expect(is_zero || static_cast<float>(strategy.value) > 0, "threshold", "value",
                 strategy.value,
                 flushes_denormals() ? "0, or 1.18e-38 or more, because denormals are flushed"
                                     : "0, or a positive float32 number");
  return std::make_unique<ThresholdAverage<float>>(strategy, averaged);
}

}  // namespace lockstep::averaging
