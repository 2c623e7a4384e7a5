#pragma once

#include <ATen/core/Generator.h>
#include <unistd.h>

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
#include "lockstep/model_files.h"
#include "lockstep/model_view.h"

namespace lockstep::inline v0_2 {

/// A reference that may be empty. Must not outlive the object.
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

/// A reference to any object with state() and load_state(): DistributedDataParallel,
/// DistributedOptimizer, samplers, a program's own types. May be empty. Must not outlive the
/// object.
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
    if constexpr (requires { object.group().size(); }) ranks_ = object.group().size();
    if constexpr (requires { object.ranks(); }) ranks_ = object.ranks();
  }

  explicit operator bool() const { return state_ != nullptr; }
  State state() const { return state_ ? state_() : State(); }
  void load_state(const State& state) const { load_(state); }
  /// Whether the object is a DistributedOptimizer whose ranks have different optimizer states.
  bool replicas_may_differ() const { return replicas_may_differ_; }
  /// The number of ranks of the object's group; 1 without one.
  int ranks() const { return ranks_; }

 private:
  std::function<State()> state_;
  std::function<void(const State&)> load_;
  bool replicas_may_differ_ = false;
  int ranks_ = 1;
};

/// A reference to any object whose state is a text, and that can check a text before it loads it:
/// LearningRate, a program's own type. May be empty. Must not outlive the object.
class StatefulText {
 public:
  StatefulText() = default;

  template <class T>
  requires(!std::same_as<std::remove_const_t<T>, StatefulText> &&
           requires(T & object, const std::string& state) {
             { object.state() } -> std::convertible_to<std::string>;
             object.check_state(state);
             object.load_state(state);
           }) StatefulText(T& object)  // NOLINT(google-explicit-constructor): it is a reference
      : state_([&object] { return std::string(object.state()); }),
        check_([&object](const std::string& state) { object.check_state(state); }),
        load_([&object](const std::string& state) { object.load_state(state); }) {}

  explicit operator bool() const { return state_ != nullptr; }
  std::string state() const { return state_(); }
  /// Throws the errors of load_state() without changing anything.
  void check_state(const std::string& state) const { check_(state); }
  void load_state(const std::string& state) const { load_(state); }

 private:
  std::function<std::string()> state_;
  std::function<void(const std::string&)> check_;
  std::function<void(const std::string&)> load_;
};

}  // namespace lockstep

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2 {

/// Values that a checkpoint stores beside its tensors.
struct CheckpointMeta {
  std::int64_t epoch = 0;                      ///< number of finished epochs
  std::map<std::string, std::string> notes{};  ///< other values of the program, by name
  std::optional<double> score{};               ///< quality of the model; higher is better
};

/// Result of load().
struct Resumed {
  CheckpointMeta meta;
  std::string changes;  ///< lists what could not be restored exactly; else empty
};

/// Saves and restores the state of a training program. Every member refers to an object of the
/// program; only the model is required.
///
///     lockstep::Checkpoint checkpoint{.model = *model, .optimizer = sgd, .rate = rate};
///     checkpoint.save("run.safetensors", {.epoch = 3}, world);
///     const auto [meta, changes] = checkpoint.load("run.safetensors", world);
///
/// A checkpoint is one safetensors file. Parameters and buffers have their names in the module. A
/// tensor with two names is stored once, under the first, and metadata has the other name. The
/// optimizer's state of a parameter is named "optimizer/<parameter>/<field>". Tensors of a single
/// rank are named "rank/<rank>/…". The file contains digests of all tensors. A complete new file
/// replaces the old one atomically; on an error the old file stays.
/// Loading checks the whole file before it changes anything. Parameters keep their memory, so the
/// model may be wrapped before or after loading. A file does not name a device: a run on devices
/// continues one on the CPU, and the reverse. Supports every torch::optim optimizer.
struct Checkpoint {
  ModelView model;
  OptionalReference<torch::optim::Optimizer> optimizer{};
  StatefulText rate{};
  Stateful sampler{};   ///< with the same state on every rank
  Stateful strategy{};  ///< DistributedDataParallel or DistributedOptimizer; saved for each rank
  at::Generator generator{};  ///< such as at::detail::getDefaultCPUGenerator(); saved for each rank
  /// Other objects with the same state on every rank, by names without '/': MovingAverage,
  /// EarlyStopping, a program's own types.
  std::map<std::string, Stateful> extra{};

  /// Saves without a group, for a single process.
  /// Throws: CheckpointError naming the file, the tensor and the cause. A tensor whose elements
  /// share memory, which load() could not fill, is an error. InvalidArgument for an optimizer that
  /// has a parameter twice.
  void save(const std::filesystem::path& path, const CheckpointMeta& meta = {}) const;
  /// Saves for a group. Rank 0 writes the common state, then the state of each rank, one rank at a
  /// time.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank.
  void save(const std::filesystem::path& path, const CheckpointMeta& meta,
            const Group& group) const;

  /// Restores the saved values, including the optimizer's options such as the learning rate, for a
  /// single process. The file must contain the state of every object that this refers to, except
  /// that of the strategy. Other contents are ignored.
  /// Throws: CheckpointError naming the file, the tensor, the value found and the value expected.
  /// The same if the strategy is of a group of several ranks.
  Resumed load(const std::filesystem::path& path) const;
  /// The same for a group, whose size may differ from that of the group that saved the file. Rank 0
  /// reads the file and sends its contents, so only rank 0's host needs the file.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, and no rank's model is changed.
  Resumed load(const std::filesystem::path& path, const Group& group) const;
};

/// Saves model and optimizer, as Checkpoint::save() does.
/// Ranks: all, with a group.
/// Throws: CheckpointError on every rank.
void save_checkpoint(const std::filesystem::path& path, const ModelView& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta = {});
void save_checkpoint(const std::filesystem::path& path, const ModelView& model,
                     torch::optim::Optimizer& optimizer, const CheckpointMeta& meta,
                     const Group& group);

/// Restores model and optimizer, as Checkpoint::load() does.
/// Ranks: all, with a group.
/// Throws: CheckpointError on every rank, and no rank's model is changed.
CheckpointMeta load_checkpoint(const std::filesystem::path& path, const ModelView& model,
                               torch::optim::Optimizer& optimizer);
CheckpointMeta load_checkpoint(const std::filesystem::path& path, const ModelView& model,
                               torch::optim::Optimizer& optimizer, const Group& group);

/// Checks at the start of a run whether a checkpoint can be written to this path. Leaves no file
/// behind.
/// Ranks: all.
/// Throws: CheckpointError on every rank.
void check_checkpoint_path(const std::filesystem::path& path, const Group& group);

/// Writes checkpoints while training continues. save() copies the tensors into memory of rank 0 and
/// returns; a thread of rank 0 writes the file. The memory of the copy is reused, and prepare()
/// allocates it before the first save().
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
  /// Waits for the file that is being written, and writes its error to stderr: call wait() first to
  /// get an exception.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Allocates memory for the first copy in a thread of rank 0, while training begins. The
  /// allocation takes several times as long as the copy. Does nothing after the first save().
  /// Ranks: all.
  /// Throws: CheckpointError on every rank if save() could not store the checkpoint.
  void prepare(const Checkpoint& checkpoint);

  /// Waits until the previous file is written, then copies the tensors. When the new file is on
  /// disk, rank 0's thread calls `afterwards`; its errors count as errors of the write.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank, also for an error of the previous write; no new write
  /// begins then.
  void save(const Checkpoint& checkpoint, const std::filesystem::path& path,
            const CheckpointMeta& meta = {}, std::function<void()> afterwards = {});

  /// Waits until the file is on disk.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank.
  void wait();

  const Group& group() const { return group_; }

 private:
  Group group_;
  safetensors::Content copy_;
  std::future<void> write_;  ///< write of copy_, or its allocation, on rank 0; its destructor waits
  pid_t process_ = ::getpid();  ///< that has the thread which writes
};

namespace detail {
class FolderLock;
}

/// Which files a CheckpointFolder keeps.
struct Keep {
  std::size_t last = 3;  ///< number of newest checkpoints that are kept, at least 1
  bool best = true;      ///< also keep the one with the highest score
};

/// The numbered checkpoints of a run in a folder of their own: checkpoint-000001.safetensors and so
/// on. There is no state besides these files, so a run can be killed at any time and resumed. Only
/// one job at a time may write to the folder. This object or a copy of it holds the lock from the
/// first save() or lock() on; another job's save() or lock() then throws. Loading needs no lock.
///
///     lockstep::CheckpointFolder folder("run");
///     if (const auto resumed = folder.load_newest(checkpoint, world)) epoch = resumed->meta.epoch;
///     … folder.save(checkpoint, {.epoch = epoch, .score = accuracy}, world);
class CheckpointFolder {
 public:
  /// Throws: InvalidArgument for last = 0.
  explicit CheckpointFolder(std::filesystem::path folder, Keep keep = {});

  /// Creates the folder if necessary, and locks it against other jobs. Call it before training, so
  /// that a conflict is detected before the first save().
  /// Ranks: all, each with the same folder.
  /// Throws: CheckpointError on every rank, naming the job that writes to the folder.
  void lock(const Group& group);

  /// Writes the next checkpoint, creates the folder if necessary, then removes the checkpoints that
  /// Keep does not select.
  /// Ranks: all, each with the same folder.
  /// Throws: CheckpointError on every rank.
  std::filesystem::path save(const Checkpoint& checkpoint, const CheckpointMeta& meta,
                             const Group& group);
  /// The same while training continues: returns when the writer has copied the tensors. The
  /// writer's thread then writes the file and removes old ones.
  /// Ranks: all of the writer's group.
  /// Throws: CheckpointError on every rank, also for an error of the previous write; no new write
  /// begins then.
  std::filesystem::path save_behind(CheckpointWriter& writer, const Checkpoint& checkpoint,
                                    const CheckpointMeta& meta);

  /// Loads the newest undamaged checkpoint. Resumed::changes lists skipped checkpoints with the
  /// reasons. Returns nullopt if the folder has no checkpoint or does not exist.
  /// Ranks: all.
  /// Throws: CheckpointError on every rank if all checkpoints are damaged, or if the newest
  /// undamaged one belongs to another model.
  std::optional<Resumed> load_newest(const Checkpoint& checkpoint, const Group& group);

  /// The paths of the newest checkpoint and of the one with the highest score. newest() includes
  /// damaged files. best() ignores scores that are NaN and files with a damaged header; only
  /// load_newest() and load() check the values.
  /// Ranks: any; not collective. Those of hosts without the folder get nullopt.
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
  std::int64_t last_ = 0;  ///< the last that next_path() has given; its file may be unwritten
  std::shared_ptr<detail::FolderLock> lock_;  ///< on rank 0
};

}  // namespace lockstep
