#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// A pool of threads that begins jobs in the order in which they were added. A job flushes
/// denormals if the thread that added it does.
class ReaderThreads {
 public:
  /// Receives the index of the thread that runs it, from 0; must not throw.
  using Job = std::function<void(std::size_t thread)>;

  explicit ReaderThreads(std::size_t count);
  /// Discards jobs that have not begun, and waits for the others.
  ~ReaderThreads();
  ReaderThreads(const ReaderThreads&) = delete;
  ReaderThreads& operator=(const ReaderThreads&) = delete;

  void add(Job job);
  /// Discards jobs that have not begun, and returns when no job runs.
  void clear();

 private:
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
};

namespace detail {

/// Throws: InvalidArgument for a batch size of 0.
PrefetchOptions checked(PrefetchOptions options);

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
/// Throws: the exceptions of the sampler. A DataError that names the batch and the index, with the
/// cause nested in it, when the iteration reaches that batch.
template <class Dataset, class Sampler>
requires std::same_as<typename Sampler::BatchRequestType, std::vector<std::size_t>>
class PrefetchLoader {
 public:
  using Batch = typename Dataset::BatchType;

  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;
    using reference = Batch&;
    using pointer = Batch*;
    using iterator_category = std::input_iterator_tag;

    explicit Iterator(PrefetchLoader& loader) : loader_(&loader) {}
    /// Returns the batch and counts its samples as used.
    Batch& operator*() const {
      loader_->count();
      return peek();
    }
    Batch* operator->() const { return &**this; }
    /// Returns the batch without counting its samples as used.
    Batch& peek() const { return *loader_->current_; }
    Iterator& operator++() {
      loader_->advance();
      return *this;
    }
    void operator++(int) { loader_->advance(); }
    bool operator==(std::default_sentinel_t) const { return !loader_->current_; }

   private:
    PrefetchLoader* loader_;
  };

  /// Throws: InvalidArgument for a batch size of 0.
  PrefetchLoader(Dataset dataset, Sampler sampler, PrefetchOptions options = {})
      : options_(detail::checked(options)),
        sampler_(std::move(sampler)),
        datasets_(std::max<std::size_t>(1, options.workers), std::move(dataset)),
        threads_(options.workers) {}
  PrefetchLoader(const PrefetchLoader&) = delete;
  PrefetchLoader& operator=(const PrefetchLoader&) = delete;

  Iterator begin() {
    threads_.clear();
    pending_.clear();
    current_.reset();
    uncounted_.reset();
    number_ = 0;
    sampler_.reset();
    tell_used(0);
    drawn_ = sampler_.next(options_.batch_size);
    advance();
    return Iterator(*this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  using Indices = std::vector<std::size_t>;
  using Task = std::packaged_task<Batch(Dataset&)>;

  struct Pending {
    std::shared_ptr<Task> task;
    std::future<Batch> batch;
    std::size_t samples;  ///< that count as used with this batch
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
    const auto task =
        std::make_shared<Task>([indices = std::move(*indices), number = number_++](
                                   Dataset& dataset) { return read(dataset, indices, number); });
    pending_.push_back({.task = task, .batch = task->get_future(), .samples = samples});
    if (options_.workers > 0)
      threads_.add([task, this](std::size_t thread) { (*task)(datasets_[thread]); });
    return true;
  }

  void advance() {
    const detail::Loading counted;
    count();
    current_.reset();
    if (pending_.empty() && !begin_next()) return;
    Pending next = std::move(pending_.front());
    pending_.pop_front();
    const std::size_t depth = options_.depth > 0 ? options_.depth : 2 * options_.workers;
    while (options_.workers > 0 && pending_.size() < depth && begin_next()) continue;
    if (options_.workers == 0) (*next.task)(datasets_.front());
    current_ = next.batch.get();
    uncounted_ = next.samples;
  }

  /// Counts the current batch as used, once.
  void count() {
    if (const auto samples = std::exchange(uncounted_, std::nullopt)) tell_used(*samples);
  }
  void tell_used(std::size_t samples) {
    if constexpr (requires { sampler_.used(samples); }) sampler_.used(samples);
  }

  PrefetchOptions options_;
  Sampler sampler_;
  std::vector<Dataset> datasets_;  ///< one copy for each thread
  std::optional<Indices> drawn_;   ///< indices of the batch after the pending ones
  std::size_t number_ = 0;         ///< its index in the pass
  std::deque<Pending> pending_;    ///< batches being read, in order
  std::optional<Batch> current_;
  std::optional<std::size_t> uncounted_;  ///< samples of current_ that are not counted yet
  detail::ReaderThreads threads_;         ///< last: the threads use the other members
};

}  // namespace lockstep
