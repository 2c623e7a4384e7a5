#pragma once

#include <cstdint>
#include <functional>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// A text stream that formats numbers independently of the global locale: with a decimal point and
/// without thousands separators.
class TextStream : public std::ostringstream {
 public:
  TextStream() { imbue(std::locale::classic()); }
};

/// Concatenates the arguments, each by its operator<<. For error texts, not for hot paths.
template <class... Args>
std::string concat(const Args&... args) {
  TextStream out;
  (out << ... << args);
  return out.str();
}

/// text(item) of each item, with the separator between two of them.
template <class Range, class Text = std::identity>
std::string joined(const Range& items, std::string_view separator, const Text& text = {}) {
  std::string all;
  for (const auto& item : items) {
    all += concat(all.empty() ? "" : separator, std::invoke(text, item));
  }
  return all;
}

/// "rank 1", "ranks 0, 2", or "ranks 0, 1, … and 5 more" for more than sixteen. note returns a text
/// that follows a rank. "no rank" for an empty list. noun: "node" for nodes.
std::string rank_list(std::span<const int> ranks,
                      const std::function<std::string_view(int)>& note = {},
                      std::string_view noun = "rank");

/// Hexadecimal, with at least so many digits.
std::string hex(std::uint64_t number, int digits = 1);

/// A number with so many decimals.
std::string fixed(double value, int decimals);

/// The shortest text that is read as the same number.
std::string shortest(double value);

/// The lines of a text, or other parts that end with this character. The last one may lack its end.
std::vector<std::string> lines_in(const std::string& text, char end = '\n');

/// Quotes a word for a shell, if it needs quotes.
std::string quoted(const std::string& word);

/// The current time in UTC, formatted by strftime().
std::string utc_text(const char* format);

/// "1 rank", "2 ranks".
template <class Count>
std::string plural(Count count, std::string_view thing) {
  return concat(count, ' ', thing, count == 1 ? "" : "s");
}

}  // namespace lockstep::detail
