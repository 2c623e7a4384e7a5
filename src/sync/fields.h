#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The options of a strategy's text: "0.01,feedback=off" behind "topk:". The first may lack a name.
/// Every question names a field; finish() refuses what was not asked for.
/// Throws: InvalidArgument naming strategy and field, what it held and what was expected.
class Fields {
 public:
  Fields(std::string_view strategy, std::string_view options);

  double real(std::string_view field, double fallback);
  std::int64_t whole(std::string_view field, std::int64_t fallback);
  /// "on" or "off".
  bool flag(std::string_view field, bool fallback);
  /// The place of the word among choices.
  std::size_t word(std::string_view field, std::initializer_list<std::string_view> choices,
                   std::size_t fallback);
  void finish() const;

 private:
  const std::string* take(std::string_view field);
  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;

  std::string strategy_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> asked_;
};

/// The shortest text that reads back as the same number.
std::string shortest(double value);

/// "topk: got a ratio of 2, expected …" as InvalidArgument, unless holds.
void expect(bool holds, std::string_view strategy, std::string_view field, double got,
            std::string_view expected);

}  // namespace lockstep::detail
