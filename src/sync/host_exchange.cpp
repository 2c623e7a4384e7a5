#include "sync/host_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/request.h"
#include "comm/waiting.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// What the current stream has when this is created. No other rank waits for it.
class StreamRequest final : public Request {
 public:
  explicit StreamRequest(const Group& group) : host_(group.host()), done_(group.device().type()) {
    const c10::impl::VirtualGuardImpl guard(group.device().type());
    done_.record(guard.getStream(group.device()));
  }
  bool complete() const override { return done_.query(); }
  bool test() override {
    host_.communicator().make_progress();  // throws if the world has failed
    return complete();
  }
  void wait() override {
    while (!test()) std::this_thread::sleep_for(poll_pause);
  }
  void abandon() noexcept override {}

 private:
  Group host_;
  c10::Event done_;
};

/// The same bucket on the host, in pinned memory, with copies of the parameters.
Bucket on_host(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<Bucket::Slice> slices;
  for (const auto& slice : bucket.slices()) {
    slices.push_back({.name = slice.name,
                      .parameter = slice.parameter.detach().to(at::kCPU).pin_memory(),
                      .offset = slice.offset});
  }
  const auto pinned = bucket.values().options().device(at::kCPU).pinned_memory(true);
  return {bucket.index(), at::zeros(bucket.values().sizes(), pinned), std::move(slices),
          bucket.group().host()};
}

class HostExchange final : public Exchange {
 public:
  HostExchange(const Bucket& bucket,
               const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make)
      : host_(on_host(bucket)), exchange_(make(host_)) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group&) override {
    host_.values().copy_(bucket.values(), /*non_blocking=*/true);
    co_await Work(std::make_shared<StreamRequest>(bucket.group()));
    if (update_step_) exchange_->before_update(*update_step_, host_);
    update_step_.reset();
    auto task = exchange_->exchange(step, host_, host_.group());
    while (!task.finished()) co_await task.advance();
    bucket.values().copy_(host_.values(), /*non_blocking=*/true);
  }

  void before_update(std::int64_t step, const Bucket& bucket) override {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < bucket.slices().size(); ++i) {
      host_.slices()[i].parameter.copy_(bucket.slices()[i].parameter, /*non_blocking=*/true);
    }
    update_step_ = step;  // exchange() awaits the copies
  }

  State state() const override { return exchange_->state(); }
  void load(const State& state) override { exchange_->load(state); }

 private:
  Bucket host_;
  std::unique_ptr<Exchange> exchange_;
  std::optional<std::int64_t> update_step_;
};

}  // namespace

std::unique_ptr<Exchange> exchange_on_cpu(
    const Bucket& bucket, const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make) {
  if (bucket.values().is_cpu()) return make(bucket);
  return std::make_unique<HostExchange>(bucket, make);
}

}  // namespace lockstep::detail
