#pragma once

#include <atomic>

namespace lockstep::inline v0_2::detail {

/// Tells the process that made it from children that were forked off since. A rank's place in its
/// world belongs to the process that joined: a child shares the memory and the sockets, not the
/// place.
class ForkGuard {
 public:
  ForkGuard();
  /// Costs one load.
  bool in_child() const noexcept { return forks_.load(std::memory_order_relaxed) != made_at_; }

 private:
  /// Forks between this process and the first process of the program.
  static std::atomic<unsigned> forks_;
  unsigned made_at_;
};

}  // namespace lockstep::detail
