#pragma once

#include <ATen/core/Generator.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/exchange.h"
#include "lockstep/group.h"
#include "lockstep/learning_rate.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2 {

/// A reference that may be empty. Must not outlive what it refers to.
template <class T>
class OptionalReference {
 public:
  OptionalReference() = default;
  OptionalReference(T& object)  // NOLINT(google-explicit-constructor): it is a reference
      : object_(&object) {}

  explicit operator bool() const { return object_ != nullptr; }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
};

/// Refers to anything that can give its state and take it back: wrappers, samplers, what a program
/// makes itself. Empty, it refers to nothing. Must not outlive what it refers to.
class Stateful {
 public:
  Stateful() = default;

  template <class T>
  requires(!std::same_as<std::remove_const_t<T>, Stateful> &&
           requires(T & object, const State& state) {
             { object.state() } -> std::convertible_to<State>;
             object.load_state(state);
           }) Stateful(T& object)  // NOLINT(google-explicit-constructor): it is a reference
      : state_([&object] { return State(object.state()); }),
        load_([&object](const State& state) { object.load_state(state); }) {
    if constexpr (requires { object.replicas_may_differ(); }) {
      replicas_may_differ_ = object.replicas_may_differ();
    }
  }

  explicit operator bool() const { return state_ != nullptr; }
  State state() const { return state_ ? state_() : State(); }
  void load_state(const State& state) const { load_(state); }
  /// Of a wrapper: whether what the optimizer remembers is each rank's own.
  bool replicas_may_differ() const { return replicas_may_differ_; }

 private:
  std::function<State()> state_;
  std::function<void(const State&)> load_;
  bool replicas_may_differ_ = false;
};

}  // namespace lockstep

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2 {

/// Progress and notes that a checkpoint stores with its tensors.
struct CheckpointMeta {
  std::int64_t epoch = 0;                      ///< epochs that are done
  std::map<std::string, std::string> notes{};  ///< whatever else the program wants back
  std::optional<double> score{};               ///< how good the model is, higher being better
};

/// Result of load().
struct Resumed {
  CheckpointMeta meta;
  std::string changes;  ///< in words, what could not be as it was; empty when all is
};

/// All that a training program needs to go on where it stopped. Every member refers to an object of
/// the program; only the model is required.
///
///     lockstep::Checkpoint checkpoint{.model = *model, .optimizer = sgd, .rate = rate};
///     checkpoint.save("run.safetensors", {.epoch = 3}, world);
///     const auto [meta, changes] = checkpoint.load("run.safetensors", world);
///
/// One safetensors file. Parameters and buffers have their own names, the optimizer's state of a
/// parameter "optimizer/<parameter>/<field>". Tensors that belong to one rank are under
/// "rank/<rank>/". The file has digests of all. It is replaced at once when all of it is on disk;
/// on an error the one that was there stays.
/// Loading compares everything before anything is changed; parameters keep their memory, so it may
/// come before or after wrapping the model. Serves every torch::optim optimizer but LBFGS, which
/// LibTorch itself cannot write after its first step.
struct Checkpoint {
  torch::nn::Module& model;
  OptionalReference<torch::optim::Optimizer> optimizer{};
  OptionalReference<LearningRate> rate{};
  Stateful sampler{};         ///< the same on every rank
  Stateful strategy{};        ///< of each rank: the wrapper whose exchanges remember something
  at::Generator generator{};  ///< of each rank, as at::detail::getDefaultCPUGenerator()

  /// Throws: CheckpointError naming file, tensor and cause.
  void save(const std::filesystem::path& path, const CheckpointMeta& meta = {}) const;
  /// The same for a group: rank 0 writes what all share, then every rank's own, one rank at a time.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank.
  void save(const std::filesystem::path& path, const CheckpointMeta& meta,
            const Group& group) const;

  /// Restores the saved values, including the optimizer's options (as its learning rate). The file
  /// must hold everything that this refers to, except a strategy's state. It may hold more, which
  /// is ignored.
  /// Throws: CheckpointError naming file, tensor, what was found and what was expected.
  Resumed load(const std::filesystem::path& path) const;
  /// The same for a group, of as many ranks as saved the file or another number. Rank 0 reads and
  /// sends, so only its host needs to have the file.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, and no rank's model is changed.
  Resumed load(const std::filesystem::path& path, const Group& group) const;
};

/// Saves model and optimizer.
/// Ranks: all, when there is a group.
/// Throws: CheckpointError on every rank.
void save_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta = {});
void save_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta,
                     const Group& group);

/// Restores model and optimizer.
/// Ranks: all, when there is a group.
/// Throws: CheckpointError on every rank, and no rank's model is changed.
CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer);
CheckpointMeta load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                               torch::optim::Optimizer& optimizer, const Group& group);

/// Finds out at the start of a long run whether a checkpoint could be written here, and leaves
/// nothing behind.
/// Ranks: all.
/// Throws: CheckpointError on every rank.
void check_checkpoint_path(const std::filesystem::path& path, const Group& group);

/// Writes checkpoints while training goes on. After save() has copied the tensors into memory of
/// rank 0, it returns, and a thread of rank 0 writes the file. The copy's memory is kept for the
/// next, and prepare() has it ready for the first.
///
///     lockstep::CheckpointWriter writer(world);
///     writer.prepare(checkpoint);
///     … writer.save(checkpoint, "run.safetensors", {.epoch = epoch});
///     writer.wait();
///
/// CheckpointFolder::save_behind() writes a run's numbered checkpoints in this way.
class CheckpointWriter {
 public:
  /// Ranks: all.
  explicit CheckpointWriter(Group group) : group_(std::move(group)) {}
  /// Waits for what was begun. An error of it is only logged: call wait() first to get it.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Lets a thread of rank 0 allocate memory for the first copy while training begins and its core
  /// is idle. The allocation costs several times as much as the copy. Does nothing after the first
  /// save().
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, for what save() would not store either.
  void prepare(const Checkpoint& checkpoint);

  /// Waits for the write before, then takes the copy. When the file is on disk, rank 0's thread
  /// calls afterwards, whose errors are the write's.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, also what went wrong with the write before; nothing is
  /// begun then.
  void save(const Checkpoint& checkpoint, const std::filesystem::path& path,
            const CheckpointMeta& meta = {}, std::function<void()> afterwards = {});

  /// Returns when all that was begun is on disk.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank.
  void wait();

  const Group& group() const { return group_; }

 private:
  Group group_;
  safetensors::Content copy_;
  std::future<void> write_;  ///< of copy_, or its preparation, on rank 0; its destructor waits
};

namespace detail {
class FolderLock;
}

/// Which files a CheckpointFolder keeps.
struct Keep {
  std::size_t last = 3;  ///< so many of the newest, at least one
  bool best = true;      ///< and the one of the highest score
};

/// A run's checkpoints, in a folder of their own: checkpoint-000001.safetensors and so on. The
/// files are the only state, so a run that was killed at any moment finds them as they are. One job
/// at a time may write. From the first save() or lock() on, while this object or a copy of it
/// lives, another job's is refused. Loading needs no lock.
///
///     lockstep::CheckpointFolder folder("run");
///     if (const auto resumed = folder.load_newest(checkpoint, world)) epoch = resumed->meta.epoch;
///     … folder.save(checkpoint, {.epoch = epoch, .score = accuracy}, world);
class CheckpointFolder {
 public:
  /// Throws: InvalidArgument for last = 0.
  explicit CheckpointFolder(std::filesystem::path folder, Keep keep = {});

  /// Makes the folder if need be, and keeps other jobs from writing to it: before the training
  /// rather than at its first save().
  /// Ranks: all, each with the same folder.
  /// Throws: CheckpointError on every rank, naming the job that writes to the folder.
  void lock(const Group& group);

  /// Writes the next checkpoint, makes the folder if need be, then removes what is not to be kept.
  /// Ranks: all, each with the same folder.
  /// Throws: CheckpointError on every rank.
  std::filesystem::path save(const Checkpoint& checkpoint, const CheckpointMeta& meta,
                             const Group& group);
  /// The same behind the training: returns when the writer has its copy, whose thread then writes
  /// and removes.
  /// Ranks: all, as a group that is the writer's.
  /// Throws: CheckpointError on every rank, also what went wrong with the write before; nothing is
  /// begun then.
  std::filesystem::path save_behind(CheckpointWriter& writer, const Checkpoint& checkpoint,
                                    const CheckpointMeta& meta);

  /// Loads the newest that is undamaged; those that were skipped, and why, stand in its changes.
  /// Nothing when the folder has none or is none.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, when there are but damaged ones, or the newest is of
  /// another model.
  std::optional<Resumed> load_newest(const Checkpoint& checkpoint, const Group& group);

  /// The newest, and the one of the highest score. newest() counts damaged ones, best() does not;
  /// it ignores a score that is NaN. Local, not collective.
  std::optional<std::filesystem::path> newest() const;
  std::optional<std::filesystem::path> best() const;

 private:
  std::filesystem::path path_of(std::int64_t number) const;
  std::filesystem::path next_path(const Group& group);
  void lock_here();
  std::set<std::int64_t> numbers() const;
  std::optional<std::int64_t> best_of(const std::set<std::int64_t>& numbers) const;
  void prune() const;

  std::filesystem::path folder_;
  Keep keep_;
  std::set<std::int64_t> damaged_;
  std::shared_ptr<detail::FolderLock> lock_;  ///< rank 0's
};

}  // namespace lockstep
