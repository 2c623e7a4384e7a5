#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// The texts that one rank raises after its world has failed.
class MetFailure {
 public:
  /// where is "all_reduce #17 (host) rank 2 of 4". The first operation gets the cause; a later one
  /// also gets where the rank has met the failure before, and the remedy.
  std::string text(std::string_view where, std::string_view cause);

  /// The program of this rank raises the error that fails the world itself, so every operation
  /// from here on is a later one. Any thread.
  void set_met() noexcept { met_.store(true, std::memory_order_relaxed); }
  bool met() const noexcept { return met_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> met_{false};
  std::string first_;  ///< the operation; empty where the program raised the error itself
};

}  // namespace lockstep::detail
