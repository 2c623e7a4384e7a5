#include "sync/host_exchange.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

namespace lockstep::inline v0_2::detail {
namespace {

/// The same bucket on the host, with copies of the parameters.
Bucket on_host(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<Bucket::Slice> slices;
  for (const auto& slice : bucket.slices()) {
    slices.push_back({.name = slice.name,
                      .parameter = slice.parameter.detach().to(at::kCPU),
                      .offset = slice.offset});
  }
  return {bucket.index(), static_cast<std::size_t>(bucket.values().numel()),
          bucket.values().scalar_type(), std::move(slices), bucket.group().host()};
}

class HostExchange final : public Exchange {
 public:
  HostExchange(const Bucket& bucket,
               const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make)
      : host_(on_host(bucket)), exchange_(make(host_)) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group&) override {
    host_.values().copy_(bucket.values());  // waits for the device
    auto task = exchange_->exchange(step, host_, host_.group());
    while (!task.finished()) co_await task.advance();
    bucket.values().copy_(host_.values());
  }

  void before_update(std::int64_t step, const Bucket& bucket) override {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      host_.slices()[i].parameter.copy_(bucket.slices()[i].parameter);
    }
    exchange_->before_update(step, host_);
  }

  State state() const override { return exchange_->state(); }
  void load(const State& state) override { exchange_->load(state); }

 private:
  Bucket host_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace

std::unique_ptr<Exchange> exchange_on_cpu(
    const Bucket& bucket, const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make) {
  if (bucket.values().is_cpu()) return make(bucket);
  return std::make_unique<HostExchange>(bucket, make);
}

}  // namespace lockstep::detail
