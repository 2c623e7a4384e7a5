#include "backend/process_group.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>
#include <utility>

#include "backend/errors.h"
#include "backend/tensors.h"
#include "comm/announcement.h"

namespace lockstep_torch {

using c10d::OpType;
using lockstep::detail::Announcement;

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
  // DDP views a complex bucket as real numbers only if it has allocated the bucket itself.
  if (const auto type = options.dtype().toScalarType(); c10::isComplexType(type)) {
    refuse("allocateTensor", c10::str("got dtype ", type,
                                      ", expected real numbers; for a DDP model with complex "
                                      "parameters set DDP_DISABLE_COMM_MEM=1 in the environment"));
  }
  return shared_tensor(size, options);
}

at::Tensor ProcessGroupLockstep::shared_tensor(std::int64_t elements,
                                               const at::TensorOptions& options) const {
  auto memory =
      progress_->allocate(static_cast<std::size_t>(elements) * options.dtype().itemsize());
  void* data = memory.get();
  // A hook of DDP may resize its bucket, which then moves to ordinary memory.
  return at::for_blob(data, {elements})
      .deleter([memory](void*) mutable { memory.reset(); })
      .options(options)
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}

namespace {

/// Whether one more group of this process may map shared memory for its operations on lists. The
/// mapping takes address space, which gradient buckets need first.
bool may_share_lists() {
  static std::atomic<int> groups{0};
  constexpr int most_groups = 16;
  rlimit space{};
  ::getrlimit(RLIMIT_AS, &space);
  return space.rlim_cur == RLIM_INFINITY && groups++ < most_groups;
}

}  // namespace

at::Tensor ProcessGroupLockstep::scratch(std::int64_t elements, const at::TensorOptions& options) {
  constexpr std::size_t least = std::size_t{64} << 10;  // less is copied as fast
  constexpr std::size_t most = std::size_t{128} << 20;  // freed, it stays with the process
  const auto bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  if (bytes < least || bytes > most) return at::empty({elements}, options);
  if (!shares_lists_) shares_lists_ = may_share_lists();
  return *shares_lists_ ? shared_tensor(elements, options) : at::empty({elements}, options);
}

at::Tensor ProcessGroupLockstep::memory_of(const Tensors& tensors) {
  if (const auto shared = consecutive(tensors); shared.defined()) return shared;
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.numel();
  return scratch(elements, tensors.front().options());
}

at::Tensor ProcessGroupLockstep::flattened(const Tensors& tensors) {
  if (tensors.size() == 1) return tensors.front().contiguous().view({-1});
  const auto memory = memory_of(tensors);
  if (memory.is_alias_of(tensors.front())) return memory;
  std::int64_t begin = 0;
  for (const auto& tensor : tensors) {
    memory.narrow(0, begin, tensor.numel()).copy_(tensor.reshape({-1}));
    begin += tensor.numel();
  }
  return memory;
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

// Note [A rank that refuses its arguments]
// Other ranks wait for this rank in the collective, and learn of the ValueError only when the
// program ends. So this rank takes part all the same, in a barrier that says what it refused. If
// all ranks refuse their arguments, the barriers match, and the group is as before. If not, the
// comparison fails on all ranks. The barrier completes on a progress thread: the program has the
// ValueError.

void ProcessGroupLockstep::send_refusal(lockstep::Collective collective, std::string_view what) {
  if (const auto begin = what.find(": got "); begin != what.npos) what.remove_prefix(begin + 6);
  what = what.substr(0, what.find("; "));  // without what the program can do
  lockstep::Issue issue{.shape = std::vector<std::int64_t>(Announcement::most_dimensions),
                        .source = {.content = lockstep::Source::Content::refusal,
                                   .number = static_cast<std::uint16_t>(collective)}};
  std::memcpy(issue.shape.data(), what.data(), std::min(what.size(), sizeof(Announcement::shape)));
  const auto work = make_work({OpType::BARRIER, "lockstep:refused"}, {}, {});
  try {
    progress_->submit(work, {}, [&](Progress::Scope scope) {
      scope.parts.operations.push_back(scope.world.barrier(std::move(issue)));
    });
  } catch (const std::exception&) {
    // The world has failed, which the next operation raises.
  }
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
