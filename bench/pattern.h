#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::bench {

/// An endless periodic sequence of elements. Ranks and repetitions start at different elements, so
/// every buffer is fresh and different. Writing a buffer runs at memory speed. One period gives the
/// expected result of a collective.
class Pattern {
 public:
  explicit Pattern(DType dtype);

  /// Element i of the result = the reduction, in order, of elements starts[0] + i, starts[1] + i,
  /// …, in the wire dtype if there is one.
  Pattern reduced(ReduceOp op, std::span<const std::size_t> starts,
                  std::optional<DType> wire = std::nullopt) const;

  /// to[i] = element start + i.
  void fill(std::byte* to, std::size_t count, std::size_t start) const;

  /// How many data[i] differ from element start + i in any bit.
  std::int64_t count_wrong(const std::byte* data, std::size_t count, std::size_t start) const;

 private:
  Pattern(DType dtype, std::vector<std::byte> elements);
  std::size_t period() const { return elements_.size() / size_of(dtype_); }

  DType dtype_;
  std::vector<std::byte> elements_;
};

/// Where rank's buffer starts in its turn-th filling: different for every rank and turn that meet.
std::size_t pattern_start(int rank, std::uint64_t turn);

}  // namespace lockstep::bench
