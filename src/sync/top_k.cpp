#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "kernels/scatter_add.h"
#include "lockstep/strategies.h"
#include "sync/bucket_layout.h"
#include "sync/fields.h"
#include "sync/host_exchange.h"
#include "sync/residual.h"
#include "sync/sparse.h"

namespace lockstep::inline v0_2 {
namespace {

template <class T>
class TopKExchange final : public Exchange {
 public:
  TopKExchange(const TopK& recipe, const Bucket& bucket)
      : recipe_(recipe), layout_(bucket), residual_(recipe.error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    const auto gradient = detail::elements<T>(bucket.values());
    allocate_buffers(recipe_.k_at(step, layout_.numel()), group);
    select(gradient);
    co_await group.all_gather(gathered_, sent_);
    add_picks(gradient, group.size());
  }

  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  using Record = detail::SparseRecord<T>;

  /// Allocates memory for k picks of every rank, unless the previous step had the same k.
  void allocate_buffers(std::size_t k, const Group& group) {
    if (space_ && space_->largest_k() == k) return;
    space_.emplace(k);
    sent_ = detail::bytes_in(group, Record::bytes(k));
    sent_.zero_();
    gathered_ = detail::bytes_in(group, Record::bytes(k) * static_cast<std::size_t>(group.size()));
  }

  void select(std::span<T> gradient) {
    const auto picks = Record::at(detail::memory_of(sent_), space_->largest_k());
    if (residual_.kept()) {
      const auto residual = residual_.template elements<T>();
      kernels::move_and_select_top(gradient, residual, *space_, picks);
      for (const auto index : picks.indices) residual[index] = 0;
    } else {
      kernels::select_top<T>(gradient, *space_, picks);
      std::fill(gradient.begin(), gradient.end(), T{0});
    }
  }

  void add_picks(std::span<T> gradient, int ranks) {
    const std::size_t k = space_->largest_k();
    const auto picks_of = [&](int rank) {
      return Record::at(
          detail::memory_of(gathered_) + Record::bytes(k) * static_cast<std::size_t>(rank), k);
    };
    for (int rank = 0; rank < ranks; ++rank) {
      const auto picks = picks_of(rank);
      const auto bad = detail::first_not_finite<T>(picks.values);
      if (!bad) continue;
      residual_.drop_not_finite();
      detail::refuse_not_finite("topk", layout_.name_at(picks.indices[*bad]), rank);
    }
    const T share = T{1} / static_cast<T>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto picks = picks_of(rank);
      kernels::scatter_add<T>(gradient, picks.indices, picks.values, share);
    }
  }

  TopK recipe_;
  detail::Layout layout_;
  detail::Residual residual_;
  std::optional<kernels::SelectSpace<T>> space_;
  at::Tensor sent_;
  at::Tensor gathered_;
};

/// The same exchange by LibTorch's operators, for a bucket on a device. It never waits for the
/// device, so it cannot refuse numbers that are not finite: they reach the mean.
class TopKOnDevice final : public Exchange {
 public:
  TopKOnDevice(const TopK& recipe, const Bucket& bucket)
      : recipe_(recipe), layout_(bucket), residual_(recipe.error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    const auto& gradient = bucket.values();
    const auto k = static_cast<std::int64_t>(recipe_.k_at(step, layout_.numel()));
    const auto sent = select(gradient, k);
    const auto gathered = group.empty({group.size(), sent.numel()}, at::kByte);
    co_await group.all_gather(gathered, sent);
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto [values, indices] = record_in(gathered[rank], k, gradient.scalar_type());
      gradient.index_add_(0, indices.to(at::kLong), values.mul(1.0 / group.size()));
    }
  }

  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  struct Record {
    at::Tensor values;
    at::Tensor indices;
  };

  /// The record of k picks in bytes: all values, all indices.
  static Record record_in(const at::Tensor& bytes, std::int64_t k, at::ScalarType dtype) {
    const auto of_values = k * static_cast<std::int64_t>(c10::elementSize(dtype));
    return {.values = bytes.narrow(0, 0, of_values).view(dtype),
            .indices = bytes.narrow(0, of_values, 4 * k).view(at::kInt)};
  }

  /// This rank's record. The gradient becomes zero.
  at::Tensor select(const at::Tensor& gradient, std::int64_t k) const {
    if (residual_.kept()) residual_.values().add_(gradient);
    const auto& from = residual_.kept() ? residual_.values() : gradient;
    const auto indices = std::get<1>(from.abs().topk(k, 0, true, false));
    const auto element = static_cast<std::int64_t>(gradient.element_size());
    auto sent = at::empty({k * (element + 4)}, gradient.options().dtype(at::kByte));
    const auto record = record_in(sent, k, gradient.scalar_type());
    record.values.copy_(from.index_select(0, indices));
    record.indices.copy_(indices);
    if (residual_.kept()) residual_.values().index_fill_(0, indices, 0);
    gradient.zero_();
    return sent;
  }

  TopK recipe_;
  detail::Layout layout_;
  detail::Residual residual_;
};

}  // namespace

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

std::unique_ptr<Exchange> TopK::exchange(const Bucket& bucket) const {
  check();
  detail::expect_dtype("topk", bucket, {at::kFloat, at::kDouble});
  if (detail::is_on_device(bucket)) return std::make_unique<TopKOnDevice>(*this, bucket);
  if (bucket.values().scalar_type() == at::kDouble) {
    return std::make_unique<TopKExchange<double>>(*this, bucket);
  }
  return std::make_unique<TopKExchange<float>>(*this, bucket);
}

}  // namespace lockstep
