#include "comm/operation.h"

#include <algorithm>
#include <numeric>

#include "core/enum_names.h"
#include "core/text.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;

constexpr detail::EnumNames<Source::Owner::differentiable> owners("", "DistributedDataParallel",
                                                                  "DistributedOptimizer",
                                                                  "differentiable collective");

constexpr detail::EnumNames<Source::Content::refusal> contents(
    "", "the gradients", "the parameters", "the buffers", "the step agreement",
    "the participation flags", "the bucket order", "the weights", "the wrappers of a backward",
    "the construction", "the number of a new group", "the backward", "the metrics", "a checkpoint",
    "Group::mean(), any() or all()", "all_or_none()", "EarlyStopping", "join_uneven()",
    "GradScaler", "refused arguments");

}  // namespace

std::string to_text(const Source& source) {
  std::string text;
  const auto add = [&](std::string_view part) {
    if (!part.empty()) text += concat(text.empty() ? "" : " of ", part);
  };
  if (source.bucket >= 0) add(concat("bucket ", source.bucket));
  add(contents.of(source.content));
  const auto number = source.number > 0 ? concat(" #", source.number) : std::string();
  if (source.owner != Source::Owner::none) add(concat(owners.of(source.owner), number));
  return text;
}

std::string in_parentheses(const Source& source) {
  const auto text = to_text(source);
  return text.empty() ? text : concat(" (", text, ")");
}

}  // namespace lockstep

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

Shape::Shape(const Operation& operation, int size, int rank)
    : operation_(operation),
      size_(size),
      rank_(rank),
      parted_(operation.collective == Collective::reduce_scatter ||
              operation.collective == Collective::scatter ||
              operation.collective == Collective::all_to_all) {}

bool Shape::is_source(int member) const {
  const bool rooted = operation_.collective == Collective::broadcast ||
                      operation_.collective == Collective::scatter;
  return has_sources() && (!rooted || member == operation_.peer);
}

std::size_t Shape::length(int source, int part) const {
  if (operation_.has_own_counts() && source != rank_) return operation_.received(source);
  return operation_.part(parted_ ? part : source);
}

std::size_t Shape::total(int source) const {
  return parted_ ? operation_.part_begin(size_) : operation_.part(source);
}

std::size_t Shape::longest_total() const { return parted_ ? total(0) : longest_part(); }

std::size_t Shape::longest_part() const {
  if (operation_.counts.empty()) return operation_.count;
  return std::ranges::max(operation_.input_counts());
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

std::string_view name(Collective collective) {
  constexpr detail::EnumNames<Collective::reduce> collectives(
      "all_reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
      "send", "recv", "barrier", "reduce");
  return collectives.of(collective);
}

std::size_t Operation::part_begin(int rank) const {
  if (counts.empty()) return count * static_cast<std::size_t>(rank);
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

std::size_t Operation::received_begin(int rank) const {
  if (!has_own_counts()) return part_begin(rank);
  const auto before = output_counts().first(static_cast<std::size_t>(rank));
  return std::accumulate(before.begin(), before.end(), std::size_t{0});
}

Buffers Operation::buffers(int rank, int size) const {
  const std::size_t own = part(rank);
  const std::size_t all = part_begin(size);
  const bool is_root = peer == rank;
  switch (collective) {
    case Collective::barrier:
      return {};
    case Collective::all_reduce:
    case Collective::broadcast:
      return {.input = count, .output = count};
    case Collective::all_gather:
      return {.input = own, .output = all};
    case Collective::reduce_scatter:
      return {.input = all, .output = own};
    case Collective::gather:
      return {.input = own, .output = is_root ? all : 0};
    case Collective::scatter:
      return {.input = is_root ? all : 0, .output = own};
    case Collective::all_to_all:
      return {.input = all, .output = received_begin(size)};
    case Collective::reduce:
      return {.input = count, .output = is_root ? count : 0};
    case Collective::send:
      return {.input = count};
    case Collective::recv:
      return {.output = count};
  }
  return {};
}

std::string Operation::label() const {
  if (collective == Collective::barrier && sequence == 0) return "init";
  if (collective == Collective::send) return detail::concat("send #", sequence, " to rank ", peer);
  if (collective == Collective::recv && peer == any_source)
    return detail::concat("recv #", sequence, " from any rank");
  if (collective == Collective::recv)
    return detail::concat("recv #", sequence, " from rank ", peer);
  return detail::concat(name(collective), " #", sequence);
}

}  // namespace lockstep
