#include "lockstep/comm/shape.h"

#include <algorithm>
#include <numeric>

namespace lockstep::detail {

Shape::Shape(const Operation& operation, int size)
    : operation_(operation),
      size_(size),
      parted_(operation.collective == Collective::reduce_scatter ||
              operation.collective == Collective::scatter ||
              operation.collective == Collective::all_to_all) {}

bool Shape::is_source(int member) const {
  const bool rooted = operation_.collective == Collective::broadcast ||
                      operation_.collective == Collective::scatter;
  return has_sources() && (!rooted || member == operation_.peer);
}

std::size_t Shape::length(int source, int part) const {
  return operation_.part(parted_ ? part : source);
}

std::size_t Shape::total(int source) const {
  return parted_ ? operation_.part_begin(size_) : operation_.part(source);
}

std::size_t Shape::longest_total() const { return parted_ ? total(0) : longest_part(); }

std::size_t Shape::longest_part() const {
  if (operation_.counts.empty()) return operation_.count;
  return *std::max_element(operation_.counts.begin(), operation_.counts.end());
}

}  // namespace lockstep::detail
