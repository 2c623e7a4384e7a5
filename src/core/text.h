#pragma once

#include <functional>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// A stream of text in which numbers have the same form under every global locale: without
/// separators of thousands and with a decimal point.
class TextStream : public std::ostringstream {
 public:
  TextStream() { imbue(std::locale::classic()); }
};

/// All arguments as one string, each by its operator<<. For messages, never for hot paths.
template <class... Args>
std::string concat(const Args&... args) {
  TextStream out;
  (out << ... << args);
  return out.str();
}

/// "rank 1", "ranks 0, 2", "ranks 0, 1, … and 5 more" beyond sixteen, each with what note says of
/// it; "no rank" of none.
std::string rank_list(std::span<const int> ranks,
                      const std::function<std::string_view(int)>& note = {});

/// The time now, in UTC, in a format of strftime().
std::string utc_text(const char* format);

}  // namespace lockstep::detail
