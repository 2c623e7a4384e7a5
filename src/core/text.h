#pragma once

#include <locale>
#include <sstream>
#include <string>

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

}  // namespace lockstep::detail
