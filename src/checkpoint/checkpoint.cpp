#include "lockstep/checkpoint.h"

#include <utility>

#include "checkpoint/checkpoint_content.h"
#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/system/atomic_file.h"
#include "lockstep/group.h"
#include "lockstep/model_files.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {

using detail::Restoration;

namespace {

/// Runs load, and restores the previous states if it throws.
template <class Load>
void load_states(const Restoration& restoration, const Load& load) {
  try {
    load();
  } catch (...) {
    restoration.restore_states();
    throw;
  }
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
    return detail::with_file_name(path, [&] {
      if (strategy.ranks() > 1) {
        throw CheckpointError(detail::concat(
            "load(path) for a single process: got a strategy of ", strategy.ranks(),
            " ranks, expected load(path, group) on all of them: each has its own residuals and "
            "random state"));
      }
      Restoration restoration(*this, std::move(content), 0, 1);
      load_states(restoration, [&] { restoration.load_states(*this); });
      restoration.apply(*this);
      return restoration.resumed();
    });
  });
}

Resumed Checkpoint::load(const std::filesystem::path& path, const Group& group) const {
  return detail::as_operation("load", [&] {
    const SourceScope scope(group.host().communicator(), {.content = Source::Content::checkpoint});
    safetensors::Content content = detail::read_on_all_ranks(path, group.host());
    Restoration restoration;
    all_or_none(group, [&] {
      restoration = detail::with_file_name(
          path, [&] { return Restoration(*this, std::move(content), group.rank(), group.size()); });
    });
    load_states(restoration, [&] {
      all_or_none(group,
                  [&] { detail::with_file_name(path, [&] { restoration.load_states(*this); }); });
    });
    restoration.apply(*this);
    return restoration.resumed();
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

}  // namespace lockstep
