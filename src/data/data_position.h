#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::inline v0_2::detail {

/// The progress of a group's DistributedSampler on this rank; of several, of the one that advanced
/// last. A loader may advance it in another thread than the one that reads it.
class DataPosition {
 public:
  /// batch counts the batches of the epoch from 1.
  void set(std::uint64_t epoch, std::uint64_t batch) {
    packed_.store(epoch << 32 | (batch & 0xffffffff), std::memory_order_relaxed);
  }
  /// 0 before the first batch.
  std::uint64_t packed() const { return packed_.load(std::memory_order_relaxed); }
  static std::uint64_t epoch_of(std::uint64_t packed) { return packed >> 32; }
  static std::uint64_t batch_of(std::uint64_t packed) { return packed & 0xffffffff; }

 private:
  std::atomic<std::uint64_t> packed_{0};
};

}  // namespace lockstep::detail
