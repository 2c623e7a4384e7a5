#include "sync/top_k_on_device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <tuple>

#include "sync/bucket_layout.h"
#include "sync/residual.h"

namespace lockstep::inline v0_2 {
namespace {

/// The exchange of topk by LibTorch's operators, for a bucket on a device. It never waits for the
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

std::unique_ptr<Exchange> detail::top_k_on_device(const TopK& recipe, const Bucket& bucket) {
  return std::make_unique<TopKOnDevice>(recipe, bucket);
}

}  // namespace lockstep
