#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "averaging/average.h"
#include "averaging/buffer.h"
#include "averaging/parse.h"
#include "averaging/sparse.h"
#include "core/text.h"
#include "kernels/scatter_add.h"

namespace lockstep::inline v0_2 {

std::string TopK::text() const {
  std::string text = "topk:" + detail::shortest(ratio);
  if (!error_feedback) text += ",feedback=off";
  if (ramp != 0) text += ",ramp=" + std::to_string(ramp);
  return text;
}

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

void TopK::check() const {
  detail::expect(ratio > 0 && ratio <= 1, "topk", "ratio", ratio, "more than 0 and at most 1");
  detail::expect(ramp >= 0, "topk", "ramp", static_cast<double>(ramp), "0 or more steps");
}

}  // namespace lockstep

namespace lockstep::inline v0_2::averaging {
namespace {

template <class T>
class TopKAverage final : public Average {
 public:
  TopKAverage(const TopK& strategy, const Elements& elements, const Arrays& arrays,
              Communicator& group)
      : Average(strategy.error_feedback, elements, arrays, group), strategy_(strategy) {}

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
    if (residual_.defined()) {
      const auto residual = residual_.as<T>();
      kernels::move_and_select_top(gradient, residual, *space_, picks);
      for (const auto index : picks.indices) residual[index] = 0;
    } else {
      kernels::select_top<T>(gradient, *space_, picks);
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
      drop_not_finite(residual_.as<T>());
      refuse_not_finite("topk", arrays_.name_at(picks.indices[*bad]), rank, group);
    }
    const T share = T{1} / static_cast<T>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto picks = picks_of(rank);
      kernels::scatter_add<T>(gradient, picks.indices, picks.values, share);
    }
  }

  TopK strategy_;
  std::optional<kernels::SelectSpace<T>> space_;
  Buffer sent_;
  Buffer gathered_;
};

}  // namespace

std::unique_ptr<Average> create(const TopK& strategy, const Elements& elements,
                                const Arrays& arrays, Communicator& group) {
  strategy.check();
  expect_dtype("topk", elements, arrays, {DType::f32, DType::f64});
  if (elements.dtype == DType::f64) {
    return std::make_unique<TopKAverage<double>>(strategy, elements, arrays, group);
  }
  return std::make_unique<TopKAverage<float>>(strategy, elements, arrays, group);
}

}  // namespace lockstep::averaging
