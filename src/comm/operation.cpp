#include "comm/operation.h"

#include <algorithm>

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

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

std::string_view name(Collective collective) {
  constexpr detail::EnumNames<Collective::reduce> collectives(
      "all_reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
      "send", "recv", "barrier", "reduce");
  return collectives.of(collective);
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
