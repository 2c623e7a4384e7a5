#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>

namespace lockstep::inline v0_2::kernels {

/// Calls fn(index, pointers) for each block of `size` elements of the arrays, which have count
/// elements. Of a last, shorter block fn gets copies that zeros follow; those of arrays that are
/// not const are copied back.
template <std::size_t size, class Fn, class... T>
void for_each_block(std::size_t count, const Fn& fn, T*... arrays) {
  std::size_t at = 0;
  for (; count - at >= size; at += size) fn(at, arrays + at...);
  const std::size_t rest = count - at;
  if (rest == 0) return;
  std::tuple<std::array<std::remove_const_t<T>, size>...> copies{};
  std::apply(
      [&](auto&... copy) {
        (std::copy_n(arrays + at, rest, copy.data()), ...);
        fn(at, copy.data()...);
        const auto copy_back = [&]<class Array>(const auto& from, Array* to) {
          if constexpr (!std::is_const_v<Array>) std::copy_n(from.data(), rest, to + at);
        };
        (copy_back(copy, arrays), ...);
      },
      copies);
}

}  // namespace lockstep::kernels
