#include "lockstep/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_content.h"
#include "comm/communicator.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/operation_error.h"
#include "core/system/files.h"
#include "core/text.h"
#include "formats/safetensors.h"
#include "group/gather.h"
#include "group/tensors.h"
#include "lockstep/group.h"
#include "lockstep/model_files.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {

using detail::Restoration;

namespace {

/// Restores the objects of a checkpoint, all or none. on_all_ranks: all_or_none() of the group.
template <class OnAllRanks>
Resumed restore(const Checkpoint& checkpoint, const std::filesystem::path& path,
                safetensors::Content content, int rank, int ranks, const OnAllRanks& on_all_ranks) {
  Restoration restoration;
  on_all_ranks([&] {
    restoration = detail::with_file_name(
        path, [&] { return Restoration(checkpoint, std::move(content), rank, ranks); });
  });
  try {
    on_all_ranks([&] { detail::with_file_name(path, [&] { restoration.load_states(); }); });
  } catch (...) {
    restoration.restore_states();
    throw;
  }
  detail::with_file_name(path, [&] { restoration.apply(checkpoint); });
  return restoration.resumed();
}

}  // namespace

void Checkpoint::save(const std::filesystem::path& path, const CheckpointMeta& meta) const {
  detail::as_operation("save", [&] {
    const detail::WholeState whole(optimizer ? &*optimizer : nullptr);
    safetensors::write(
        path, detail::with_file_name(path, [&] { return detail::content_of(*this, meta, 0, 1); }));
  });
}

void Checkpoint::save(const std::filesystem::path& path, const CheckpointMeta& meta,
                      const Group& group) const {
  detail::as_operation("save", [&] {
    const SourceScope scope(group.host().communicator(), {.content = Source::Content::checkpoint});
    safetensors::Content own;
    const detail::WholeState whole(optimizer ? &*optimizer : nullptr, &group);
    all_or_none(group, [&] {
      own = detail::with_file_name(
          path, [&] { return detail::content_of(*this, meta, group.rank(), group.size()); });
    });
    detail::write_from_all_ranks(path, own, group.host());
  });
}

Resumed Checkpoint::load(const std::filesystem::path& path) const {
  return detail::as_operation("load", [&] {
    safetensors::Content content = safetensors::read(path);
    if (strategy.ranks() > 1) {
      throw CheckpointError(detail::concat(
          path.string(), ": load(path) for a single process: got a strategy of ", strategy.ranks(),
          " ranks, expected load(path, group) on all of them: each has its own residuals and "
          "random state"));
    }
    return restore(*this, path, std::move(content), 0, 1, [](const auto& fn) { fn(); });
  });
}

Resumed Checkpoint::load(const std::filesystem::path& path, const Group& group) const {
  return detail::as_operation("load", [&] {
    const SourceScope scope(group.host().communicator(), {.content = Source::Content::checkpoint});
    safetensors::Content content = detail::read_on_all_ranks(path, group.host());
    Resumed resumed = restore(*this, path, std::move(content), group.rank(), group.size(),
                              [&](const auto& fn) { all_or_none(group, fn); });
    resumed.changes = detail::gather(resumed.changes, group)[0];
    return resumed;
  });
}

void save_checkpoint(const std::filesystem::path& path, const ModelView& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta) {
  Checkpoint{.model = model, .optimizer = optimizer}.save(path, meta);
}

void save_checkpoint(const std::filesystem::path& path, const ModelView& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta,
                     const Group& group) {
  Checkpoint{.model = model, .optimizer = optimizer}.save(path, meta, group);
}

CheckpointMeta load_checkpoint(const std::filesystem::path& path, const ModelView& model,
                               torch::optim::Optimizer& optimizer) {
  return Checkpoint{.model = model, .optimizer = optimizer}.load(path).meta;
}

CheckpointMeta load_checkpoint(const std::filesystem::path& path, const ModelView& model,
                               torch::optim::Optimizer& optimizer, const Group& group) {
  return Checkpoint{.model = model, .optimizer = optimizer}.load(path, group).meta;
}

void check_checkpoint_path(const std::filesystem::path& path, const Group& group) {
  all_or_none(group, [&] {
    // The constructor throws if the file cannot be written.
    if (group.rank() == 0) detail::AtomicFile(path, detail::AtomicFile::Use::checkpoint);
  });
}

namespace {

/// A copy of from. Reuses the memory of previous for tensors of the same name, sizes and dtype.
safetensors::Content copy_of(const safetensors::Content& from,
                             const safetensors::Content& previous) {
  const at::NoGradGuard no_grad;
  safetensors::Content copy{.tensors = {}, .metadata = from.metadata};
  for (const auto& [name, tensor] : from.tensors) {
    const auto found = previous.tensors.find(name);
    const bool reuses = found != previous.tensors.end() &&
                        found->second.sizes() == tensor.sizes() &&
                        found->second.scalar_type() == tensor.scalar_type();
    // Not at::copy_, which wakes threads for each tensor. That is much slower on busy cores.
    const bool plain = tensor.layout() == at::kStrided && tensor.is_cpu() &&
                       tensor.is_contiguous() && !tensor.is_conj() &&
                       detail::has_values_in_memory(tensor);
    at::Tensor to = reuses  ? found->second
                    : plain ? at::empty_like(tensor.detach())
                            : tensor.detach().cpu().clone(at::MemoryFormat::Contiguous);
    if (plain)
      std::ranges::copy(safetensors::bytes_of(tensor), safetensors::writable_bytes_of(to).begin());
    else if (reuses)
      to.copy_(tensor);
    copy.tensors[name] = std::move(to);
  }
  return copy;
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  // In a forked child nothing ends the wait of a destructor.
  if (process_ != ::getpid()) new std::future<void>(std::move(write_));
  if (!write_.valid()) return;
  try {
    write_.get();
  } catch (...) {
    log::notice(detail::concat("CheckpointWriter: ", detail::current_error_text()));
  }
}

void CheckpointWriter::prepare(const Checkpoint& checkpoint) {
  const auto& optimizer = checkpoint.optimizer;
  const detail::WholeState whole(optimizer ? &*optimizer : nullptr, &group_);
  all_or_none(group_, [&] {
    if (group_.rank() != 0 || write_.valid() || !copy_.tensors.empty()) return;
    for (const auto& [name, tensor] : detail::future_tensors(checkpoint))
      copy_.tensors[name] = at::empty(tensor.sizes(), tensor.scalar_type());
    write_ = std::async(std::launch::async, [memory = copy_] {
      setpriority(PRIO_PROCESS, 0, 19);  // lowers the priority of this thread only
      for (const auto& [name, tensor] : memory.tensors)
        std::ranges::fill(safetensors::writable_bytes_of(tensor), std::byte{0});
    });
  });
}

void CheckpointWriter::save(const Checkpoint& checkpoint, const std::filesystem::path& path,
                            const CheckpointMeta& meta, std::function<void()> afterwards) {
  const SourceScope scope(group_.host().communicator(), {.content = Source::Content::checkpoint});
  wait();
  safetensors::Content own;
  const auto& optimizer = checkpoint.optimizer;
  const detail::WholeState whole(optimizer ? &*optimizer : nullptr, &group_);
  all_or_none(group_, [&] {
    detail::with_file_name(path, [&] {
      own = detail::content_of(checkpoint, meta, group_.rank(), group_.size());
      if (group_.rank() == 0) own = copy_ = copy_of(own, copy_);
    });
  });
  const safetensors::Content all = detail::gather_content(path, own, group_.host());
  all_or_none(group_, [&] {
    if (group_.rank() != 0) return;
    try {
      write_ = std::async(std::launch::async, [path, all, afterwards = std::move(afterwards)] {
        safetensors::write(path, all);
        if (afterwards) afterwards();
      });
    } catch (const std::system_error& error) {
      throw CheckpointError(detail::concat(
          path.string(), ": cannot start the thread that writes it: ", error.what()));
    }
  });
}

void CheckpointWriter::wait() {
  const SourceScope scope(group_.host().communicator(), {.content = Source::Content::checkpoint});
  all_or_none(group_, [&] {
    if (write_.valid()) write_.get();
  });
}

}  // namespace lockstep
