#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>

namespace c10 {
struct IValue;
}

namespace lockstep::detail {

/// Accepts any tensor; stands for the callable that visit_tensors() is given.
struct TensorVisitor {
  void operator()(const at::Tensor&) const {}
};

/// A user's type with `void visit_tensors(const T& output, const auto& visit)` beside it, which
/// calls visit with every tensor of the output.
template <class T>
concept HasVisitTensors = requires(const T& value, const TensorVisitor& visit) {
  visit_tensors(value, visit);
};

template <class T>
concept IsTensor = std::convertible_to<const T&, const at::Tensor&>;

template <class T>
concept IsIValue = std::same_as<T, c10::IValue>;

template <class T>
concept IsTuple = requires {
  std::tuple_size<T>::value;
}
&&!std::ranges::range<T>;

/// An entry of torch::OrderedDict or c10::Dict.
template <class T>
concept IsEntry = requires(const T& entry) {
  entry.key();
  entry.value();
};

/// std::optional, std::unique_ptr, std::shared_ptr: something, or nothing.
template <class T>
concept IsHandle = !std::is_array_v<T> && requires(const T& handle) {
  static_cast<bool>(handle);
  *handle;
};

template <class T>
struct IsVariant : std::false_type {};
template <class... Alternatives>
struct IsVariant<std::variant<Alternatives...>> : std::true_type {};

/// A tensor owns memory, so a type without a destructor of its own holds none.
template <class T>
concept HoldsNoTensor = std::is_trivially_copyable_v<T> || std::convertible_to<T, std::string_view>;

/// Which of a type's values for_each_tensor() can find the tensors of.
template <class T>
constexpr bool can_visit();

template <class T>
struct CanVisitParts : std::false_type {};
template <template <class...> class Tuple, class... Parts>
struct CanVisitParts<Tuple<Parts...>>
    : std::bool_constant<(can_visit<std::remove_cvref_t<Parts>>() && ...)> {};

template <class T, std::size_t... I>
constexpr bool can_visit_elements(std::index_sequence<I...>) {
  return (can_visit<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
}

template <class T>
constexpr bool can_visit() {
  if constexpr (HasVisitTensors<T> || IsTensor<T> || IsIValue<T> || HoldsNoTensor<T>) {
    return true;
  } else if constexpr (IsVariant<T>::value) {
    return CanVisitParts<T>::value;
  } else if constexpr (IsTuple<T>) {
    return can_visit_elements<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<const T>) {
    using Part = std::remove_cvref_t<std::ranges::range_reference_t<const T>>;
    if constexpr (std::same_as<Part, T>) {
      return false;
    } else {
      return can_visit<Part>();
    }
  } else if constexpr (IsEntry<T>) {
    return can_visit<std::remove_cvref_t<decltype(std::declval<const T&>().value())>>();
  } else if constexpr (IsHandle<T>) {
    return can_visit<std::remove_cvref_t<decltype(*std::declval<const T&>())>>();
  } else {
    return false;
  }
}

/// Whether backward can reach a model through a value of this type.
template <class T>
concept Watchable = !HoldsNoTensor<T> && can_visit<T>();

/// Calls visit with every tensor in a value for which can_visit() holds.
template <class T, class Visit>
void for_each_tensor(const T& value, const Visit& visit) {
  if constexpr (HasVisitTensors<T>) {
    visit_tensors(value, visit);
  } else if constexpr (IsTensor<T>) {
    visit(value);
  } else if constexpr (IsIValue<T>) {
    value.visit([&](const auto& part) {
      if (part.isTensor()) visit(part.toTensor());
      return false;
    });
  } else if constexpr (HoldsNoTensor<T>) {
    return;
  } else if constexpr (IsVariant<T>::value) {
    std::visit([&](const auto& part) { for_each_tensor(part, visit); }, value);
  } else if constexpr (IsTuple<T>) {
    std::apply([&](const auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
  } else if constexpr (std::ranges::range<const T>) {
    for (const auto& part : value) for_each_tensor(part, visit);
  } else if constexpr (IsEntry<T>) {
    for_each_tensor(value.value(), visit);
  } else {
    if (value) for_each_tensor(*value, visit);
  }
}

}  // namespace lockstep::detail
