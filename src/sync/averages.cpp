#include "lockstep/averages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>
#include <utility>

#include "averaging/average.h"
#include "comm/communicator.h"
#include "lockstep/exchange.h"
#include "sync/bucket_layout.h"
#include "sync/host_exchange.h"

namespace lockstep::inline v0_2 {
namespace {

/// The exchange of a bucket by an average over the bucket's memory.
class AverageExchange final : public Exchange {
 public:
  AverageExchange(const Bucket& bucket, std::unique_ptr<averaging::Average> average)
      : layout_(bucket), average_(std::move(average)) {
    if (const auto& memory = average_->residual(); memory.defined()) {
      residual_ = at::from_blob(
          memory.data(), bucket.values().sizes(), [memory](void*) {}, bucket.values().options());
    }
  }

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    return average_->exchange(step, detail::elements_of(bucket.values()), group.communicator());
  }
  bool has_parts() const override { return average_->is_all_reduce(); }
  ExchangeTask exchange_part(std::int64_t step, Bucket& bucket, const at::Tensor& part,
                             const Group& group) override {
    return average_->exchange_part(step, detail::elements_of(bucket.values()),
                                   detail::elements_of(part), group.communicator());
  }
  bool is_all_reduce() const override { return average_->is_all_reduce(); }
  State state() const override { return layout_.split(residual_, "residual"); }
  void load(const State& state) override { layout_.join(state, "residual", residual_); }

 private:
  detail::Layout layout_;
  std::unique_ptr<averaging::Average> average_;
  at::Tensor residual_;  ///< shares the memory of the average; undefined without error feedback
};

/// The exchange of topk by LibTorch's operators, for a bucket on a device. It never waits for the
/// device, so it cannot refuse numbers that are not finite: they reach the mean.
class TopKOnDevice final : public Exchange {
 public:
  TopKOnDevice(const TopK& recipe, const Bucket& bucket) : recipe_(recipe), layout_(bucket) {
    if (recipe.error_feedback) residual_ = at::zeros_like(bucket.values());
  }

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

  State state() const override { return layout_.split(residual_, "residual"); }
  void load(const State& state) override { layout_.join(state, "residual", residual_); }

 private:
  struct Record {
    at::Tensor values;
    at::Tensor indices;
  };

  /// The bytes of a record: a multiple of eight, so that the next rank's values are aligned.
  static std::int64_t bytes_of(std::int64_t k, at::ScalarType dtype) {
    return (k * (static_cast<std::int64_t>(c10::elementSize(dtype)) + 4) + 7) / 8 * 8;
  }

  /// The record of k picks in bytes: all values, all indices.
  static Record record_in(const at::Tensor& bytes, std::int64_t k, at::ScalarType dtype) {
    const auto of_values = k * static_cast<std::int64_t>(c10::elementSize(dtype));
    return {.values = bytes.narrow(0, 0, of_values).view(dtype),
            .indices = bytes.narrow(0, of_values, 4 * k).view(at::kInt)};
  }

  /// This rank's record. The gradient becomes zero.
  at::Tensor select(const at::Tensor& gradient, std::int64_t k) const {
    if (residual_.defined()) residual_.add_(gradient);
    const auto& from = residual_.defined() ? residual_ : gradient;
    const auto indices = std::get<1>(from.abs().topk(k, 0, true, false));
    const auto dtype = gradient.scalar_type();
    auto sent = at::empty({bytes_of(k, dtype)}, gradient.options().dtype(at::kByte));
    const auto record = record_in(sent, k, dtype);
    record.values.copy_(from.index_select(0, indices));
    record.indices.copy_(indices);
    if (residual_.defined()) residual_.index_fill_(0, indices, 0);
    gradient.zero_();
    return sent;
  }

  TopK recipe_;
  detail::Layout layout_;
  at::Tensor residual_;  ///< flat, in the order of the bucket; undefined without error feedback
};

template <class Recipe>
std::unique_ptr<Exchange> exchange_of(const Recipe& recipe, const Bucket& bucket) {
  return std::make_unique<AverageExchange>(bucket,
                                           averaging::create(recipe, detail::averaged(bucket)));
}

/// The same in memory of the host, for averages whose kernels are for the CPU.
template <class Recipe>
std::unique_ptr<Exchange> exchange_on_cpu(const Recipe& recipe, const Bucket& bucket) {
  return detail::exchange_on_cpu(bucket,
                                 [&](const Bucket& host) { return exchange_of(recipe, host); });
}

}  // namespace

std::unique_ptr<Exchange> AllReduce::exchange(const Bucket& bucket) const {
  return exchange_of(*this, bucket);
}

std::unique_ptr<Exchange> Fp16::exchange(const Bucket& bucket) const {
  return exchange_of(*this, bucket);
}

std::unique_ptr<Exchange> Bf16::exchange(const Bucket& bucket) const {
  return exchange_of(*this, bucket);
}

std::unique_ptr<Exchange> Int8::exchange(const Bucket& bucket) const {
  return exchange_on_cpu(*this, bucket);
}

std::unique_ptr<Exchange> Threshold::exchange(const Bucket& bucket) const {
  return exchange_on_cpu(*this, bucket);
}

std::unique_ptr<Exchange> TopK::exchange(const Bucket& bucket) const {
  if (bucket.values().is_cpu()) return exchange_of(*this, bucket);
  check();
  averaging::expect_dtype("topk", detail::averaged(bucket), {DType::f32, DType::f64});
  return std::make_unique<TopKOnDevice>(*this, bucket);
}

}  // namespace lockstep
