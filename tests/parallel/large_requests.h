#pragma once

#include <cstddef>

namespace lockstep::testing {

/// Counts what the calling thread asks the allocator for, while it lives: requests of at least so
/// many bytes, of whichever library. One at a time a thread.
class LargeRequests {
 public:
  /// Not beside a sanitizer, which has an allocator of its own.
  static bool can_count();

  explicit LargeRequests(std::size_t least_bytes);
  ~LargeRequests();
  LargeRequests(const LargeRequests&) = delete;
  LargeRequests& operator=(const LargeRequests&) = delete;

  std::size_t count() const;
};

}  // namespace lockstep::testing
