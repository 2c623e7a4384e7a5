#include "lockstep/averages.h"

#include <utility>

#include "averaging/average.h"
#include "comm/communicator.h"
#include "lockstep/exchange.h"
#include "sync/bucket_layout.h"
#include "sync/host_exchange.h"
#include "sync/residual.h"
#include "sync/top_k_on_device.h"

namespace lockstep::inline v0_2 {
namespace {

/// The exchange of a bucket by an average over the bucket's memory.
class AverageExchange final : public Exchange {
 public:
  AverageExchange(const Bucket& bucket, std::unique_ptr<averaging::Average> average)
      : layout_(bucket), average_(std::move(average)), residual_(average_->residual(), bucket) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    return average_->exchange(step, detail::elements_of(bucket), group.communicator());
  }
  bool has_parts() const override { return average_->has_parts(); }
  ExchangeTask exchange_part(std::int64_t step, Bucket& bucket, const at::Tensor& part,
                             const Group& group) override {
    return average_->exchange_part(step, detail::elements_of(bucket), detail::elements_of(part),
                                   group.communicator());
  }
  bool is_all_reduce() const override { return average_->is_all_reduce(); }
  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  detail::Layout layout_;
  std::unique_ptr<averaging::Average> average_;
  detail::Residual residual_;
};

template <class Recipe>
std::unique_ptr<Exchange> exchange_of(const Recipe& recipe, const Bucket& bucket) {
  return std::make_unique<AverageExchange>(
      bucket, averaging::create(recipe, detail::elements_of(bucket), detail::arrays_of(bucket),
                                bucket.group().communicator()));
}

/// The same in memory of the host, for averages whose kernels are for the CPU.
template <class Recipe>
std::unique_ptr<Exchange> exchange_on_cpu(const Recipe& recipe, const Bucket& bucket) {
  if (!detail::is_on_device(bucket)) return exchange_of(recipe, bucket);
  return detail::exchange_on_host(
      bucket, [recipe](const Bucket& host) { return exchange_of(recipe, host); });
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
  if (!detail::is_on_device(bucket)) return exchange_of(*this, bucket);
  check();
  detail::expect_dtype("topk", bucket, {DType::f32, DType::f64});
  return detail::top_k_on_device(*this, bucket);
}

}  // namespace lockstep
