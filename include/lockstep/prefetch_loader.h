#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <stop_token>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/samplers.h"

namespace lockstep::inline v0_2::detail {

/// A pool of threads that begins jobs in the order in which they were added. A job flushes
/// denormals if the thread that added it does.
class ReaderThreads {
 public:
  /// Receives the index of the thread that runs it, from 0; must not throw.
  using Job = std::function<void(std::size_t thread)>;

  /// Not destroyed in a forked child, which does not have the threads.
  static std::shared_ptr<ReaderThreads> create(std::size_t count);
  /// Discards jobs that have not begun, and waits for the others.
  ~ReaderThreads();
  ReaderThreads(const ReaderThreads&) = delete;
  ReaderThreads& operator=(const ReaderThreads&) = delete;

  void add(Job job);
  /// Discards jobs that have not begun, and returns when no job runs.
  void clear();

 private:
  explicit ReaderThreads(std::size_t count);

  struct Added {
    Job job;
    bool flushes_denormals;
  };

  void run(const std::stop_token& stop, std::size_t thread);

  std::mutex mutex_;
  std::condition_variable_any added_;
  std::condition_variable idle_;
  std::deque<Added> jobs_;
  std::size_t running_ = 0;
  std::vector<std::jthread> threads_;  ///< last: the threads use the other members
};

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

struct PrefetchOptions {
  std::size_t batch_size = 1;
  std::size_t workers =
      1;                  ///< number of reading threads; 0 reads each batch in the iterating thread
  std::size_t depth = 0;  ///< most batches that are read ahead; 0 for two per worker
  bool drop_last = false;  ///< skip a last batch with fewer than batch_size samples
  /// The loader copies the tensors of each batch to this device, on a stream of its own, while the
  /// program uses the batch before. Not set, or the CPU: batches stay as they are read.
  std::optional<at::Device> device = {};
  /// With a device: reading threads copy each batch to pinned memory. Otherwise the copy to the
  /// device does not overlap with the program.
  bool pin_memory = true;
};

namespace detail {

/// Throws: InvalidArgument for a batch size of 0, and for a device that does not exist.
/// has_tensors: whether the loader can find the tensors of a batch.
PrefetchOptions checked(PrefetchOptions options, bool has_tensors);

/// Throws: InvalidArgument for a sampler of more samples than the dataset has.
void check_size(std::size_t of_sampler, std::optional<std::size_t> of_dataset);

/// Stands for the callable of change_tensors() in concepts.
struct TensorChange {
  void operator()(at::Tensor&) const {}
};

/// A batch of a user's type with a function `void change_tensors(T& batch, const auto& change)` in
/// the same namespace, which calls change with every tensor of the batch.
template <class T>
concept HasChangeTensors = requires(T& batch, const TensorChange& change) {
  change_tensors(batch, change);
};

/// torch::data::Example, with or without a target.
template <class T>
concept IsExample = requires(T& example) {
  example.data;
};

template <class T>
constexpr bool can_change();

template <class T, std::size_t... I>
constexpr bool can_change_elements(std::index_sequence<I...>) {
  return (can_change<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
}

/// Whether change_each() can find the tensors in a batch of type T.
template <class T>
constexpr bool can_change() {
  if constexpr (std::same_as<T, at::Tensor> || HasChangeTensors<T> ||
                std::is_trivially_copyable_v<T> || std::convertible_to<T, std::string_view>) {
    return true;
  } else if constexpr (IsExample<T>) {
    if constexpr (requires(T & example) { example.target; }) {
      return can_change<decltype(T::data)>() && can_change<decltype(T::target)>();
    } else {
      return can_change<decltype(T::data)>();
    }
  } else if constexpr (requires { std::tuple_size<T>::value; } && !std::ranges::range<T>) {
    return can_change_elements<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<T>) {
    return can_change<std::remove_cvref_t<std::ranges::range_reference_t<T>>>();
  } else {
    return false;
  }
}

/// Calls change with every tensor of a batch. Requires can_change<T>().
template <class T, class Change>
void change_each(T& batch, const Change& change) {
  if constexpr (std::same_as<T, at::Tensor>) {
    change(batch);
  } else if constexpr (HasChangeTensors<T>) {
    change_tensors(batch, change);
  } else if constexpr (std::is_trivially_copyable_v<T> ||
                       std::convertible_to<T, std::string_view>) {
    return;
  } else if constexpr (IsExample<T>) {
    change_each(batch.data, change);
    if constexpr (requires { batch.target; }) change_each(batch.target, change);
  } else if constexpr (requires { std::tuple_size<T>::value; } && !std::ranges::range<T>) {
    std::apply([&](auto&... parts) { (change_each(parts, change), ...); }, batch);
  } else {
    for (auto&& part : batch) change_each(part, change);
  }
}

/// The copy of one batch to a device.
struct BatchCopy;

/// Copies batches to a device on a stream of its own. The memory of the copies belongs to the
/// stream that is current in begin(). The copy waits for that stream, whose earlier work may use
/// the memory.
class BatchCopier {
 public:
  /// Tensors of a batch, by their places in it.
  using Tensors = std::vector<at::Tensor*>;

  explicit BatchCopier(const PrefetchOptions& options);
  /// Waits for copies that are not complete.
  ~BatchCopier();
  BatchCopier(const BatchCopier&) = delete;
  BatchCopier& operator=(const BatchCopier&) = delete;

  /// The tensor in pinned memory, for a reading thread.
  at::Tensor pinned(const at::Tensor& tensor) const;
  /// Begins the copy of a batch, and replaces its tensors.
  std::shared_ptr<BatchCopy> begin(const Tensors& tensors);
  /// Makes the current stream wait for the copy. The batch may then be used, or freed.
  void finish(const std::shared_ptr<BatchCopy>& copy);

 private:
  struct Streams;

  bool pin_memory_;
  std::unique_ptr<Streams> streams_;
  std::deque<std::shared_ptr<BatchCopy>> running_;  ///< their sources must outlive the copies
};

/// The time that this thread has spent waiting for batches of a PrefetchLoader, or reading them.
std::chrono::nanoseconds loading_time();

/// Adds its lifetime to loading_time().
class Loading {
 public:
  Loading() : begin_(std::chrono::steady_clock::now()) {}
  ~Loading();
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

 private:
  std::chrono::steady_clock::time_point begin_;
};

/// Rethrows the current exception nested in a DataError that names the batch. If reading a single
/// index of it fails, too, the error also names the index.
[[noreturn]] void rethrow_named(std::size_t batch, c10::ArrayRef<std::size_t> indices,
                                const std::function<void(std::size_t index)>& read_alone);

}  // namespace detail

/// The batches of a dataset in a sampler's order, read ahead by worker threads. Each thread has its
/// own copy of the dataset. The batches are the same for any number of workers, provided that
/// reading does not change what the dataset returns for an index.
///
///     lockstep::PrefetchLoader loader(data, sampler, {.batch_size = 64, .workers = 2});
///     for (int epoch = 0; epoch < 10; ++epoch)
///       for (auto& batch : loader) …
///
/// Each begin() ends the previous pass, also one that was left early or failed, and starts a new
/// one. In contrast, torch::data's loader throws if the previous pass was left early, and its
/// sampler counts samples that workers have drawn ahead as used. The iterating thread draws from
/// the sampler. It calls used() with the samples that the program has received, so the sampler's
/// state() is the progress of the program.
///
/// With PrefetchOptions::device, the next batch is copied to the device while the program uses the
/// current one. It must have been read by then, so that needs at least one worker. A batch is
/// usable on the current stream when the iterator reaches it. The iterating thread does not wait
/// for the device. Batches may be tensors, torch::data::Example, and tuples, vectors and maps of
/// them. For another type declare, in the type's namespace,
///
///     void change_tensors(Batch& batch, const auto& change);  // calls change(tensor)
///
/// Throws: the exceptions of the sampler. A DataError that names the batch and the index, with the
/// cause nested in it, when the iteration reaches that batch.
template <class Dataset, class Sampler>
requires std::same_as<typename Sampler::BatchRequestType, std::vector<std::size_t>>
class PrefetchLoader {
 public:
  using Batch = typename Dataset::BatchType;

  /// Its peek() returns the batch without counting its samples as used.
  using Iterator = detail::RangeIterator<PrefetchLoader, Batch>;

  /// Throws: InvalidArgument for a batch size of 0, and for a sampler with a size() above the
  /// dataset's. InvalidArgument for a device that does not exist, and for a device with batches of
  /// a type whose tensors the loader cannot find.
  PrefetchLoader(Dataset dataset, Sampler sampler, PrefetchOptions options = {})
      : options_(detail::checked(options, detail::can_change<Batch>())),
        sampler_(std::move(sampler)),
        datasets_(std::max<std::size_t>(1, options.workers), std::move(dataset)),
        threads_(detail::ReaderThreads::create(options.workers)) {
    if (options_.device) copier_.emplace(options_);
    if constexpr (requires {
                    { datasets_[0].size() } -> std::convertible_to<std::optional<std::size_t>>;
                    { sampler_.size() } -> std::convertible_to<std::size_t>;
                  })
      detail::check_size(sampler_.size(), datasets_[0].size());
  }
  /// Makes the current stream wait for copies to the device.
  ~PrefetchLoader() {
    try {
      drop_next();
    } catch (const std::exception&) {
      // The device has failed; the program's next use of it raises the error.
    }
  }
  PrefetchLoader(const PrefetchLoader&) = delete;
  PrefetchLoader& operator=(const PrefetchLoader&) = delete;

  Iterator begin() {
    threads_->clear();
    pending_.clear();
    drop_next();
    current_.reset();
    uncounted_.reset();
    number_ = 0;
    sampler_.reset();
    tell_used(0);
    drawn_ = sampler_.next(options_.batch_size);
    if (drawn_ && is_dropped(*drawn_)) tell_used(drawn_->size());
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend Iterator;
  using Indices = std::vector<std::size_t>;
  using Task = std::packaged_task<Batch(Dataset&)>;

  struct Pending {
    std::shared_ptr<Task> task;
    std::future<Batch> batch;
    std::size_t samples;  ///< that count as used with this batch
  };

  /// A batch that was read, and its copy to the device.
  struct Taken {
    std::optional<Batch> batch = {};
    std::exception_ptr error = {};
    std::size_t samples = 0;
    std::shared_ptr<detail::BatchCopy> copy = {};
  };

  static Batch read(Dataset& dataset, const Indices& indices, std::size_t number) {
    try {
      return dataset.get_batch(indices);
    } catch (...) {
      detail::rethrow_named(number, indices, [&](std::size_t index) { dataset.get_batch(index); });
    }
  }

  bool is_dropped(const Indices& indices) const {
    return options_.drop_last && indices.size() < options_.batch_size;
  }

  /// Begins to read the next batch. False at the end of the pass.
  bool begin_next() {
    std::optional<Indices> indices = std::exchange(drawn_, std::nullopt);
    if (!indices || is_dropped(*indices)) return false;
    drawn_ = sampler_.next(options_.batch_size);
    // The last whole batch ends the pass, so it also counts the dropped samples after it.
    const std::size_t samples =
        indices->size() + (drawn_ && is_dropped(*drawn_) ? drawn_->size() : 0);
    const auto task = std::make_shared<Task>(
        [this, indices = std::move(*indices), number = number_++](Dataset& dataset) {
          return pinned(read(dataset, indices, number));
        });
    pending_.push_back({.task = task, .batch = task->get_future(), .samples = samples});
    if (options_.workers > 0)
      threads_->add([task, this](std::size_t thread) { (*task)(datasets_[thread]); });
    return true;
  }

  Batch pinned(Batch batch) const {
    if constexpr (detail::can_change<Batch>()) {
      if (copier_) {
        detail::change_each(batch, [&](at::Tensor& tensor) { tensor = copier_->pinned(tensor); });
      }
    }
    return batch;
  }

  /// Waits until the next pending batch is read, and begins its copy to the device.
  Taken take() {
    Pending next = std::move(pending_.front());
    pending_.pop_front();
    Taken taken{.samples = next.samples};
    try {
      if (options_.workers == 0) (*next.task)(datasets_.front());
      taken.batch = next.batch.get();
      if constexpr (detail::can_change<Batch>()) {
        if (copier_) {
          detail::BatchCopier::Tensors tensors;
          detail::change_each(*taken.batch,
                              [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
          taken.copy = copier_->begin(tensors);
        }
      }
    } catch (...) {
      taken.error = std::current_exception();
    }
    return taken;
  }

  /// Discards the batch that is copied ahead. Its memory is freed after the copy.
  void drop_next() {
    if (next_ && next_->copy) copier_->finish(next_->copy);
    next_.reset();
  }

  void advance() {
    const detail::Loading counted;
    count();
    current_.reset();
    if (!next_ && pending_.empty() && !begin_next()) return;
    if (!next_) next_ = take();
    Taken taken = std::move(*std::exchange(next_, std::nullopt));
    const std::size_t depth = options_.depth > 0 ? options_.depth : 2 * options_.workers;
    while (options_.workers > 0 && pending_.size() < depth && begin_next()) continue;
    if (taken.error) std::rethrow_exception(taken.error);
    if (taken.copy) copier_->finish(taken.copy);
    current_ = std::move(taken.batch);
    uncounted_ = taken.samples;
    const bool is_read =
        copier_ && !pending_.empty() &&
        pending_.front().batch.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (is_read) next_ = take();
  }

  Batch& peek() { return *current_; }
  bool ended() const { return !current_; }
  /// Counts the current batch as used, once.
  void count() {
    if (const auto samples = std::exchange(uncounted_, std::nullopt)) tell_used(*samples);
  }
  void tell_used(std::size_t samples) {
    if constexpr (requires { sampler_.used(samples); }) sampler_.used(samples);
  }

  PrefetchOptions options_;
  Sampler sampler_;
  std::vector<Dataset> datasets_;              ///< one copy for each thread
  std::optional<Indices> drawn_;               ///< indices of the batch after the pending ones
  std::size_t number_ = 0;                     ///< its index in the pass
  std::deque<Pending> pending_;                ///< batches being read, in order
  std::optional<detail::BatchCopier> copier_;  ///< of options_.device
  std::optional<Taken> next_;  ///< the batch after the current one, being copied to the device
  std::optional<Batch> current_;
  std::optional<std::size_t> uncounted_;  ///< samples of current_ that are not counted yet
  std::shared_ptr<detail::ReaderThreads> threads_;  ///< last: the threads use the other members
};

}  // namespace lockstep
