#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/control/failure.h"

namespace lockstep::inline v0_2::detail {

/// Why a world ended. The values are part of the layout of a host world's memory.
enum class FailureKind {
  error,
  timeout,
  left,  ///< a rank left the world while another waited for it
  mismatch,
  abandoned,  ///< an exception left the scope of an operation
  elsewhere   ///< met outside of this host's memory, such as over the network
};

/// The first failure of a world that no memory joins, as one rank has recorded it. Any thread.
class FailureRecord {
 public:
  /// Records the failure unless there is one; whether there was none. A failure of other ranks is
  /// one that they have announced.
  bool record(const control::Failure& failure, bool of_others = false) noexcept;
  bool recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }
  bool of_others() const;
  control::Failure failure() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> recorded_{false};
  control::Failure failure_;
  bool of_others_ = false;
};

/// The errors that one rank raises after its world has failed.
class RaisedFailure {
 public:
  /// Throws: the failure with its fields, as CommError or TimeoutError. where is "all_reduce #17
  /// (host) rank 2 of 4". The first operation gets the cause; a later one also gets where the rank
  /// raised the failure before, and the remedy.
  [[noreturn]] void raise(std::string_view where, const control::Failure& failure);

  /// The program of this rank raises the error that fails the world itself, so every operation
  /// from here on is a later one. Any thread.
  void set_raised() noexcept { raised_.store(true, std::memory_order_relaxed); }
  bool raised() const noexcept { return raised_.load(std::memory_order_relaxed); }

 private:
  std::string text(std::string_view where, std::string_view cause);

  std::atomic<bool> raised_{false};
  std::string first_;  ///< the operation; empty where the program raised the error itself
};

}  // namespace lockstep::detail
