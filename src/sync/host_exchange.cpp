#include "sync/host_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/backend_communicator.h"
#include "comm/communicator.h"
#include "comm/waiting.h"
#include "core/deadline.h"
#include "device/comm_stream.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// The work that the current stream has when the request is made. No other rank waits for it.
class StreamRequest final : public Request {
 public:
  explicit StreamRequest(const Group& group) : host_(group.host()), done_(group.device().type()) {
    const c10::impl::VirtualGuardImpl guard(group.device().type());
    done_.record(guard.getStream(group.device()));
  }
  bool complete() const override { return device::is_complete(done_); }
  bool test() override {
    host_.communicator().make_progress();  // throws if the world has failed
    return complete();
  }
  void wait() override {
    while (!test()) std::this_thread::sleep_for(poll_pause);
  }
  void abandon() noexcept override {}
  /// Whether it is complete, or the device has failed.
  bool ended() const noexcept {
    try {
      return complete();
    } catch (const std::exception&) {
      return true;
    }
  }

 private:
  Group host_;
  c10::Event done_;
};

/// Lets a device copy these bytes of the host asynchronously until the result is destroyed. Null
/// without CUDA, or if it refuses: copies wait.
std::shared_ptr<void> pin_bytes(void* data, std::size_t bytes) {
  static const device::CudaFunction<void*, std::size_t, unsigned> pin("cudaHostRegister");
  static const device::CudaFunction<void*> unpin("cudaHostUnregister");
  if (!pin(data, bytes, 0)) return nullptr;
  return {data, [](void* pinned) { unpin(pinned); }};
}

/// Zeros in the group's memory, which ranks of the host share, pinned. They have pages of their
/// own, because CUDA pins whole pages.
at::Tensor pinned_zeros(const Group& host, std::int64_t numel, at::ScalarType dtype) {
  constexpr std::int64_t page = 4096;
  const auto bytes = numel * static_cast<std::int64_t>(c10::elementSize(dtype));
  const auto pages = (bytes + page - 1) / page * page;
  const auto memory = host.empty({pages + page}, at::kByte);
  const auto before = reinterpret_cast<std::uintptr_t>(memory.data_ptr()) % page;
  auto* const data = memory.data_ptr<std::uint8_t>() + (page - before);
  auto pinned = pin_bytes(data, static_cast<std::size_t>(pages));
  return at::from_blob(
             data, {numel}, [memory, pinned](void*) mutable { pinned.reset(); },
             at::TensorOptions().dtype(dtype))
      .zero_();
}

/// The same bucket on the host, in pinned memory, with copies of the parameters.
Bucket on_host(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<Bucket::Slice> slices;
  for (const auto& slice : bucket.slices()) {
    slices.push_back({.name = slice.name,
                      .parameter = slice.parameter.detach().to(at::kCPU).pin_memory(),
                      .offset = slice.offset});
  }
  const auto host = bucket.group().host();
  const auto& values = bucket.values();
  return {bucket.index(), pinned_zeros(host, values.numel(), values.scalar_type()),
          std::move(slices), host};
}

class HostExchange final : public Exchange {
 public:
  HostExchange(const Bucket& bucket,
               const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make)
      : host_(on_host(bucket)), exchange_(make(host_)) {}
  ~HostExchange() override {
    // A device that does not complete its copy within this time has failed.
    Deadline deadline(std::chrono::seconds(10));
    while (copied_back_ && !copied_back_->ended() && !deadline.passed()) {
      std::this_thread::sleep_for(poll_pause);
    }
  }

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group&) override {
    host_.values().copy_(bucket.values(), /*non_blocking=*/true);
    co_await Work(std::make_shared<StreamRequest>(bucket.group()));
    if (update_step_) exchange_->before_update(*update_step_, host_);
    update_step_.reset();
    auto task = exchange_->exchange(step, host_, host_.group());
    while (!task.finished()) co_await task.advance();
    bucket.values().copy_(host_.values(), /*non_blocking=*/true);
    copied_back_.emplace(bucket.group());
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
  std::optional<StreamRequest> copied_back_;
};

}  // namespace

std::unique_ptr<Exchange> exchange_on_cpu(
    const Bucket& bucket, const std::function<std::unique_ptr<Exchange>(const Bucket&)>& make) {
  if (bucket.values().is_cpu()) return make(bucket);
  return std::make_unique<HostExchange>(bucket, make);
}

}  // namespace lockstep::detail
