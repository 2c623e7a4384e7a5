#pragma once

#include <clocale>
#include <locale>
#include <string>

namespace lockstep::testing {

/// While it lives, the global locale writes 1234.5 as "1.234,5". So does C's, where the system has
/// such a locale.
class OtherNumbers {
 public:
  OtherNumbers() {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"}) {
      if (std::setlocale(LC_NUMERIC, name) != nullptr) break;
    }
  }
  ~OtherNumbers() {
    std::locale::global(before_);
    std::setlocale(LC_NUMERIC, numbers_before_.c_str());
  }
  OtherNumbers(const OtherNumbers&) = delete;
  OtherNumbers& operator=(const OtherNumbers&) = delete;

 private:
  struct Punctuation : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };

  std::string numbers_before_ = std::setlocale(LC_NUMERIC, nullptr);
  std::locale before_ = std::locale::global(std::locale(std::locale::classic(), new Punctuation));
};

}  // namespace lockstep::testing
