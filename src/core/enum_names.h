#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// The names of an enum's values, which are 0, 1, 2, … to last.
template <auto last>
class EnumNames {
 public:
  using Enum = decltype(last);

  template <class... Name>
  explicit constexpr EnumNames(Name... names) : names_{names...} {
    static_assert(sizeof...(names) == size, "a name for each value");
  }

  constexpr std::string_view of(Enum value) const {
    const auto index = static_cast<std::size_t>(value);
    return index < size ? names_[index] : "unknown";
  }

  /// The value with this name.
  /// Throws: InvalidArgument, as "backend: got 'x', expected auto, host or mpi" for "backend:".
  Enum parse(std::string_view what, std::string_view name) const {
    std::string expected;
    for (std::size_t i = 0; i < size; ++i) {
      if (names_[i] == name) return static_cast<Enum>(i);
      expected += concat(i == 0 ? "" : i == size - 1 ? " or " : ", ", names_[i]);
    }
    throw InvalidArgument(concat(what, " got '", name, "', expected ", expected));
  }

 private:
  static constexpr std::size_t size = static_cast<std::size_t>(last) + 1;
  std::array<std::string_view, size> names_;
};

}  // namespace lockstep::detail
