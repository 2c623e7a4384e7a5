#include "comm/shape.h"

#include <algorithm>
#include <numeric>

namespace lockstep::inline v0_2::detail {

Range slice_of(std::size_t length, std::size_t element, int member, int members) {
  constexpr std::size_t cache_line = 64;
  const std::size_t per_line = cache_line / element;
  const std::size_t lines = (length + per_line - 1) / per_line;
  const auto count = static_cast<std::size_t>(members);
  const std::size_t share = (lines + count - 1) / count * per_line;
  const std::size_t begin = std::min(length, share * static_cast<std::size_t>(member));
  return {.begin = begin, .length = std::min(share, length - begin)};
}

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
