#include "comm/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/numeric/digest.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {
namespace {

using Lines = std::vector<std::string>;

std::string join(std::span<const std::string> lines) {
  std::string text;
  for (const auto& line : lines) text.append(line).push_back('\n');
  return text;
}

/// all: the lines of each rank of the group.
LineDifference describe_difference(const std::vector<Lines>& all, const Communicator& group) {
  std::size_t longest = 0;
  for (const auto& lines : all) longest = std::max(longest, lines.size());
  for (std::size_t i = 0; i < longest; ++i) {
    const auto line = [&](std::size_t rank) -> std::string {
      return i < all[rank].size() ? all[rank][i] : "nothing";
    };
    struct Variant {
      std::string line;
      std::vector<int> ranks;
    };
    std::vector<Variant> variants;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto variant = std::ranges::find(variants, line(rank), &Variant::line);
      if (variant == variants.end()) variant = variants.insert(variant, {line(rank), {}});
      variant->ranks.push_back(static_cast<int>(rank));
    }
    if (variants.size() == 1) continue;
    const auto text = joined(variants, "; ", [](const Variant& variant) {
      return concat(variant.line, " on ", rank_list(variant.ranks));
    });
    const auto count = [](const Variant& variant) { return variant.ranks.size(); };
    const auto majority = std::ranges::max_element(variants, {}, count);
    const auto differing = majority == variants.begin() ? majority + 1 : variants.begin();
    return {.text = text, .rank = group.world_rank(differing->ranks.front())};
  }
  return {.text = "the lines are equal, but their digests differ"};
}

}  // namespace

std::vector<std::string> gather(const std::string& own, Communicator& group) {
  const auto sizes = gather_values(own.size(), group);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), '\0');
  group.all_gather(own.data(), all.data(), Parts(sizes), DType::u8).wait();
  std::vector<std::string> texts;
  for (std::size_t begin = 0; const auto size : sizes)
    texts.push_back(all.substr(std::exchange(begin, begin + size), size));
  return texts;
}

std::optional<LineDifference> difference(Communicator& group, std::span<const std::string> lines,
                                         std::int64_t* highest) {
  struct Summary {
    std::uint64_t digest;
    std::uint64_t size;
    std::int64_t highest;
  };
  const auto text = join(lines);
  const auto all = gather_values(Summary{.digest = digest(std::as_bytes(std::span(text))),
                                         .size = text.size(),
                                         .highest = highest != nullptr ? *highest : 0},
                                 group);
  if (highest != nullptr) *highest = std::ranges::max(all, {}, &Summary::highest).highest;
  if (std::ranges::all_of(all, [&](const Summary& theirs) {
        return theirs.digest == all[0].digest && theirs.size == all[0].size;
      }))
    return std::nullopt;
  std::vector<Lines> lines_of_ranks;
  for (const auto& of_rank : gather(text, group)) lines_of_ranks.push_back(lines_in(of_rank));
  return describe_difference(lines_of_ranks, group);
}

}  // namespace lockstep::detail
