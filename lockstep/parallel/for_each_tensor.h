#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>

namespace lockstep::detail {

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
}
&&!std::ranges::range<T>;

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// Calls fn with every tensor in a value: a tensor itself, or those in tuples, pairs, optionals and
/// ranges, nested at will. Anything else holds none.
template <class T, class Fn>
void for_each_tensor(const T& value, const Fn& fn) {
  if constexpr (std::convertible_to<const T&, const at::Tensor&>) {
    fn(value);
  } else if constexpr (IsOptional<T>::value) {
    if (value) for_each_tensor(*value, fn);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... parts) { (for_each_tensor(parts, fn), ...); }, value);
  } else if constexpr (std::ranges::range<const T>) {
    if constexpr (!std::same_as<std::ranges::range_value_t<const T>, T>) {
      for (const auto& part : value) for_each_tensor(part, fn);
    }
  }
}

}  // namespace lockstep::detail
