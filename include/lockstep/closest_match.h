#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2 {

/// The candidate that a misspelt word most likely means, for messages about unknown names; empty if
/// none is close. Two words are close if a third of their letters, at least one, turns one into the
/// other: each is inserted, left out, replaced, or swapped with its neighbour. Hyphens in front of
/// a word and the case of letters do not count. Of several that are equally close, the first.
/// Source: Damerau, "A technique for computer detection and correction of spelling errors", 1964.
std::string closest_match(std::string_view word, std::span<const std::string> candidates);

}  // namespace lockstep
