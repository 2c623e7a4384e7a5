#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sched.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/waiting.h"
#include "core/deadline.h"
#include "core/system/process.h"
#include "core/text.h"
#include "device/comm_stream.h"
#include "device/nccl_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {
namespace {

using detail::concat;

/// Longest wait for other ranks when a communicator is destroyed.
constexpr auto end_time = std::chrono::seconds(2);
/// Time after which the wait for a call of NCCL sleeps between polls. A thread of NCCL ends most
/// calls sooner.
constexpr auto call_yield_time = std::chrono::microseconds(200);

/// Calls step(). Raises this rank's error, or the one of another rank. Ranks: all.
void do_on_all(Communicator& host, const std::function<void()>& step, std::string_view what) {
  std::exception_ptr error;
  try {
    step();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  std::uint8_t failed = error != nullptr ? 1 : 0;
  host.all_reduce(&failed, 1, DType::u8, ReduceOp::max).wait();
  if (error != nullptr) std::rethrow_exception(error);
  if (failed != 0) throw BackendUnavailable(concat("nccl: ", what, " failed on another rank"));
}

/// Runs a call of NCCL that may wait for kernels or other ranks in a thread of its own.
std::future<void> run_apart(c10::Device device, std::function<void()> call) {
  const auto task = std::make_shared<std::packaged_task<void()>>([device, call = std::move(call)] {
    const RelaxedCapture relaxed;
    c10::impl::VirtualGuardImpl(device.type()).uncheckedSetDevice(device);
    call();
  });
  auto end = task->get_future();
  try {
    const detail::SignalsBlocked blocked;
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();  // there are no more threads
  }
  return end;
}

const NcclLibrary& library_on_all(Communicator& host) {
  do_on_all(
      host, [] { NcclLibrary::get(); }, "loading NCCL");
  return NcclLibrary::get();
}

}  // namespace

NcclComm::NcclComm(Communicator& host, const DeviceRankContext& context)
    : library_(library_on_all(host)), context_(context), host_(host) {
  const c10::DeviceGuard on_device(context_.stream().device());
  nccl::UniqueId id{};
  const auto make_id = [&] {
    if (host.rank() != 0 || library_.get_unique_id(&id) == nccl::Result::success) return;
    throw BackendUnavailable(
        concat("nccl: rank 0 cannot make an id: ", library_.get_last_error(nullptr)));
  };
  do_on_all(host, make_id, "making an id");
  host.broadcast(&id, sizeof id, DType::u8, 0).wait();
  const auto join = [&] {
    nccl::Config config;
    config.blocking = 0;
    const auto result =
        settle(library_.comm_init_rank_config(&comm_, host.size(), id, host.rank(), &config));
    if (result == nccl::Result::success) return;
    throw BackendUnavailable(
        concat("nccl: rank ", host.rank(), " of ", host.size(), " cannot join with ",
               context_.stream().device(), ": ", library_.get_error_string(result), ": ",
               library_.get_last_error(comm_),
               ". NCCL needs a GPU for each rank; ranks that share one exchange tensors through "
               "host memory (lockstep run --share-gpus), or by NCCL 2.30 or newer "
               "(--share-gpus=nccl); this is NCCL ",
               library_.version_text()));
  };
  try {
    do_on_all(host, join, "the start of NCCL");
  } catch (...) {
    if (const auto ended = abort(); ended.valid()) ended.wait_for(end_time);
    throw;
  }
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr || context_.ended()) return;
  run_apart(context_.stream().device(), [&library = library_, comm = comm_] {
    auto result = library.comm_finalize(comm);
    detail::Deadline deadline(end_time);
    while (result == nccl::Result::in_progress && !deadline.passed()) {
      std::this_thread::sleep_for(detail::poll_pause);
      if (library.comm_get_async_error(comm, &result) != nccl::Result::success) break;
    }
    // ncclCommDestroy waits until all ranks call it. One that has left with an exception and one
    // that still uses the group must not wait for each other.
    result == nccl::Result::success ? library.comm_destroy(comm) : library.comm_abort(comm);
  }).wait_for(2 * end_time);
}

nccl::Result NcclComm::settle(nccl::Result result) {
  detail::Deadline deadline(context_.timeout());
  detail::Deadline::Clock::duration next_check = DeviceRankContext::check_pause;
  while (result == nccl::Result::in_progress) {
    const auto asked = library_.comm_get_async_error(comm_, &result);
    if (asked != nccl::Result::success) return asked;
    if (result != nccl::Result::in_progress) break;
    host_.make_progress();  // throws if the host world has failed
    if (const auto elapsed = deadline.elapsed(); elapsed >= next_check) {
      host_.check_processes("a call of NCCL ended");
      next_check = elapsed + DeviceRankContext::check_pause;
    }
    if (deadline.passed()) {
      throw TimeoutError(concat("nccl: a call has not returned after ",
                                context_.timeout().count() / 1000.0, " s"));
    }
    if (deadline.elapsed() < call_yield_time) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(detail::poll_pause);
    }
  }
  return result;
}

void NcclComm::fail(std::string_view what, nccl::Result result) const {
  throw CommError(concat(what, ": NCCL: ", library_.get_error_string(result), ": ",
                         comm_ != nullptr ? library_.get_last_error(comm_) : "aborted"));
}

void NcclComm::issue(std::string_view what, const Calls& calls) {
  if (comm_ == nullptr) fail(what, nccl::Result::invalid_usage);
  const c10::DeviceGuard on_device(context_.stream().device());
  auto* const stream = static_cast<nccl::Stream*>(cuda_stream(context_.stream().stream()));
  library_.group_start();
  const auto called = calls(library_, comm_, stream);
  const auto ended = settle(library_.group_end());
  for (const auto result : {called, ended}) {
    if (result != nccl::Result::success && result != nccl::Result::in_progress) fail(what, result);
  }
}

void NcclComm::check() {
  if (comm_ == nullptr) return;
  auto result = nccl::Result::success;
  const auto asked = library_.comm_get_async_error(comm_, &result);
  if (asked != nccl::Result::success) result = asked;
  if (result == nccl::Result::success || result == nccl::Result::in_progress) return;
  fail("asynchronous error", result);
}

std::future<void> NcclComm::abort() noexcept {
  if (comm_ == nullptr || context_.ended()) return {};
  return run_apart(
      context_.stream().device(),
      [&library = library_, comm = std::exchange(comm_, nullptr)] { library.comm_abort(comm); });
}

}  // namespace lockstep::device
