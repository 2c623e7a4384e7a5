#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "bench/measured_library.h"
#include "bench/pattern.h"
#include "bench/settings.h"

namespace lockstep::bench {

/// One rank's buffers for a number of collectives in a row, each on memory of its own.
class Round {
 public:
  /// settings: kept by reference.
  Round(Transport& transport, const Settings& settings, Memory memory, std::size_t bytes);

  /// Writes every buffer anew. Ranks: any, each for itself.
  void fill();
  /// The collectives, one after another. Ranks: all.
  void run();
  /// How many elements of this rank's results are not what they must be. Ranks: any, after run().
  std::int64_t count_wrong() const;

  /// Collectives of a round: one for large buffers, and as many for small ones as stay in a core's
  /// cache together, so that reading the clock costs nothing beside them.
  std::size_t length() const { return length_; }

 private:
  std::byte* input(std::size_t i) const { return memory_.get() + i * stride_; }
  std::byte* output(std::size_t i) const { return input(i) + output_offset_; }
  std::int64_t count_wrong(std::size_t i) const;

  Transport& transport_;
  const Settings& settings_;
  std::size_t count_;
  std::size_t length_;
  std::size_t input_count_;  ///< elements that this rank writes
  std::size_t output_offset_;
  std::size_t stride_;
  std::shared_ptr<std::byte> memory_;
  Pattern pattern_;
  std::uint64_t turn_ = 0;
};

}  // namespace lockstep::bench
