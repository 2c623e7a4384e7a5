#include "backend/process_group.h"

#include <ATen/ATen.h>

#include "backend/errors.h"
#include "backend/tensors.h"

namespace lockstep_torch {

void (*without_interpreter_lock)(const std::function<void()>&) = [](const auto& function) {
  function();
};

ProcessGroupLockstep::ProcessGroupLockstep(const c10::intrusive_ptr<c10d::Store>& store,
                                           const Membership& membership,
                                           std::chrono::milliseconds timeout)
    : c10d::Backend(membership.rank, membership.size),
      options_(c10::make_intrusive<Options>("lockstep", timeout)),
      progress_(std::make_shared<Progress>(join_world(store, membership, timeout), timeout)) {}

ProcessGroupLockstep::~ProcessGroupLockstep() { shutdown(); }

void ProcessGroupLockstep::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  progress_->set_timeout(timeout);
}

at::Tensor ProcessGroupLockstep::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    refuse("allocateTensor", c10::str("got device ", options.device(), ", expected device cpu"));
  }
  const auto bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  auto memory = progress_->allocate(bytes);
  void* data = memory.get();
  return at::from_blob(
      data, {size}, [memory](void*) mutable { memory.reset(); }, options);
}

void ProcessGroupLockstep::abort() { progress_->fail("the program aborted the process group"); }

void ProcessGroupLockstep::shutdown() {
  // A progress thread may need the interpreter's lock before it ends.
  without_interpreter_lock([&] { progress_->stop(); });
}

WorkPointer ProcessGroupLockstep::make_work(Title title, const Tensors& inputs,
                                            TensorLists outputs) {
  if (!c10d::isP2POp(title.type)) ++sequence_;
  return c10::make_intrusive<BackendWork>(progress_, rank_, title.type, title.text, inputs,
                                          std::move(outputs), sequence_);
}

void ProcessGroupLockstep::expect_root(const char* operation, std::int64_t root) const {
  if (root >= 0 && root < size_) return;
  refuse(operation, c10::str("got root ", root, ", expected a rank from 0 to ", size_ - 1));
}

void ProcessGroupLockstep::expect_peer(const char* operation, int peer) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return;
  refuse(operation, c10::str("got rank ", peer, ", expected another rank from 0 to ", size_ - 1));
}

}  // namespace lockstep_torch
