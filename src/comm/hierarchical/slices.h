#pragma once

#include <cstddef>
#include <vector>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::hierarchical {

/// Elements that one rank of a host carries to the other hosts.
struct Slice {
  std::byte* data = nullptr;
  std::size_t count = 0;
};

/// How an all_reduce's elements are divided among the first ranks of each host, alike on all hosts:
/// whole cache lines, the last slices may be shorter or empty.
class Slices {
 public:
  /// The first `carriers` of local_size ranks get one slice each; the slices of the others are
  /// empty.
  Slices(const Operation& operation, int carriers, int local_size);

  Slice of(int local_rank) const { return slices_[static_cast<std::size_t>(local_rank)]; }
  /// Elements of each local rank's slice.
  std::vector<std::size_t> counts() const;

 private:
  std::vector<Slice> slices_;
};

struct Ratio {
  int above = 1;
  int below = 1;
};

/// Takes every element, a float32, to the nearest of at most that magnitude; 0 leaves them alone.
void clamp(const Slice& slice, float most);

/// Multiplies every element, float32 or float64, by the ratio in that type.
void scale(const Slice& slice, DType dtype, Ratio ratio);

}  // namespace lockstep::hierarchical
