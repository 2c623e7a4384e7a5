#include "core/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <ctime>
#include <iomanip>
#include <vector>

#include "lockstep/closest_match.h"

namespace lockstep::inline v0_2::detail {

std::string rank_list(std::span<const int> ranks, const std::function<std::string_view(int)>& note,
                      std::string_view noun) {
  constexpr std::size_t most = 16;
  if (ranks.empty()) return concat("no ", noun);
  std::string text = concat(noun, ranks.size() == 1 ? " " : "s ");
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    text += concat(i == 0 ? "" : ", ", ranks[i], note ? note(ranks[i]) : "");
  }
  if (ranks.size() > most) text += concat(" and ", ranks.size() - most, " more");
  return text;
}

std::string hex(std::uint64_t number, int digits) {
  TextStream out;
  out << std::hex << std::setfill('0') << std::setw(digits) << number;
  return out.str();
}

std::string fixed(double value, int decimals) {
  TextStream out;
  out << std::fixed << std::setprecision(decimals) << value;
  return out.str();
}

std::string shortest(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::vector<std::string> lines_in(const std::string& text, char end) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line, end);) lines.push_back(line);
  return lines;
}

std::string quoted(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%^";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

std::string utc_text(const char* format) {
  const auto now = std::time(nullptr);
  tm parts{};
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, gmtime_r(&now, &parts));
  return text.data();
}

}  // namespace lockstep::detail

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
