#include "core/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <iomanip>

namespace lockstep::inline v0_2::detail {

std::string rank_list(std::span<const int> ranks,
                      const std::function<std::string_view(int)>& note) {
  constexpr std::size_t most = 16;
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
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
