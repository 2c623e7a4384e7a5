#include "lockstep/closest_match.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <vector>

namespace lockstep::inline v0_2 {
namespace {

/// The letters that are compared.
std::string letters_of(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string letters(word);
  std::ranges::transform(letters, letters.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return letters;
}

/// How many letters are inserted, left out, replaced, or swapped with their neighbours.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before_last;
  std::vector<std::size_t> last(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::vector<std::size_t> row(b.size() + 1);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last[b.size()];
}

}  // namespace

std::string closest_match(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t longest = 64;  // no name is that long
  const std::string letters = letters_of(word);
  if (letters.empty() || letters.size() > longest) return {};
  std::string closest;
  std::size_t least = std::max<std::size_t>(1, letters.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::string other = letters_of(candidate);
    // Of words of one or two letters any two would be close.
    if (other.size() < 3 || other.size() > longest) continue;
    const std::size_t steps = distance(letters, other);
    if (steps >= least) continue;
    least = steps;
    closest = candidate;
  }
  return closest;
}

}  // namespace lockstep
