#pragma once

#include <cstddef>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// A run of elements within a part.
struct Range {
  std::size_t begin = 0;
  std::size_t length = 0;
};

/// Member's slice of length elements that are divided among members, whole cache lines.
Range slice_of(std::size_t length, std::size_t element, int member, int members);

/// How a collective's data lie: which members' inputs are read by others (sources), and into how
/// many parts each is cut.
class Shape {
 public:
  Shape(const Operation& operation, int size);

  bool is_source(int member) const;
  bool has_sources() const { return operation_.collective != Collective::barrier; }
  /// Parts of each source's input: one, or one for every member.
  int parts() const { return parted_ ? size_ : 1; }
  /// Elements of a source's part, and how many elements of that source lie before it.
  std::size_t length(int source, int part) const;
  std::size_t begin(int part) const { return parted_ ? operation_.part_begin(part) : 0; }
  /// Elements of a source's whole input, and the longest of all sources.
  std::size_t total(int source) const;
  std::size_t longest_total() const;
  std::size_t longest_part() const;

 private:
  const Operation& operation_;
  int size_;
  bool parted_;
};

}  // namespace lockstep::detail
