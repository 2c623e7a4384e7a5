#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/failure.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::adapter {

/// Publishes the first cause of a world's failure under a key of a c10d::Store, and polls the store
/// for it. A separate thread calls the store, because its calls may block.
class FailureStore {
 public:
  using Callback = std::function<void(const detail::Failure&)>;

  /// world: the number of the world among those of the store. The thread calls on_failure at most
  /// once, also for this rank's own failure.
  FailureStore(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t world,
               Callback on_failure);
  /// Waits until a failure passed to publish() is written.
  ~FailureStore();
  FailureStore(const FailureStore&) = delete;
  FailureStore& operator=(const FailureStore&) = delete;

  /// Writes the failure, unless the store already has one, which on_failure then gets. Waits until
  /// that is done, for at most one second. Not from on_failure.
  void publish(const detail::Failure& failure) noexcept;
  /// Polls the store immediately. Waits until that is done, for at most one second. Not from
  /// on_failure.
  void poll_now();

 private:
  void run();
  /// Writes or reads the key. Returns false when the key has a failure, or the destructor has
  /// begun.
  bool poll();
  void complete_poll();

  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
  Callback on_failure_;
  std::mutex mutex_;
  /// A forked child does not destroy it: the destructor would wait for the parent's thread.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::optional<detail::Failure> own_failure_;
  bool poll_requested_ = false;
  bool ended_ = false;
  bool stopping_ = false;
  detail::ForkGuard process_;
  std::thread thread_;
};

}  // namespace lockstep::adapter
