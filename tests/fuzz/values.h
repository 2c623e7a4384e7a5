#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

/// Values of pickles, as the harnesses of unpickle and of torch files look at them.
namespace lockstep::fuzzing {

/// The parts of a list, tuple or dict; keys and values of a dict alternate.
inline std::vector<c10::IValue> parts_of(const c10::IValue& value) {
  std::vector<c10::IValue> parts;
  if (value.isList()) parts = value.toListRef().vec();
  if (value.isTuple()) parts = value.toTupleRef().elements().vec();
  if (value.isGenericDict())
    for (const auto& item : value.toGenericDict()) {
      parts.push_back(item.key());
      parts.push_back(item.value());
    }
  return parts;
}

inline constexpr std::size_t most = 1 << 16;  ///< bytes and parts of a value that is not large

/// Adds to the size until it reaches most.
inline void expand(const c10::IValue& value, std::size_t& size) {
  size = std::min(size + 1, most);
  if (value.isString()) size = std::min(size + value.toStringRef().size(), most);
  if (value.isTensor()) {
    std::size_t bytes = value.toTensor().element_size();
    for (const std::int64_t length : value.toTensor().sizes())
      bytes = std::min(bytes * std::min(static_cast<std::size_t>(length), most), most);
    size = std::min(size + bytes, most);
  }
  if (size == most) return;
  for (const c10::IValue& part : parts_of(value)) {
    expand(part, size);
    if (size == most) return;
  }
}

/// Whether a value has many bytes and parts. Every part counts where it occurs: a value may hold
/// one list many times, and a tensor may repeat one element.
inline bool is_large(const c10::IValue& value) {
  std::size_t size = 0;
  expand(value, size);
  return size == most;
}

inline bool within_storage(const at::Tensor& tensor) {
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return true;
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return tensor.storage_offset() >= 0 &&
         static_cast<std::size_t>(last + 1) * tensor.element_size() <= tensor.storage().nbytes();
}

/// Whether every tensor lies within its storage. Not for large values.
inline bool within_storage(const c10::IValue& value) {
  if (value.isTensor()) return within_storage(value.toTensor());
  return std::ranges::all_of(parts_of(value),
                             [](const c10::IValue& part) { return within_storage(part); });
}

/// The values of a tensor, which may be a view.
inline std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

/// Equal types, numbers with equal bits, texts, and tensors with equal dtypes, sizes and values.
inline bool equal(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isBool()) return a.toBool() == b.toBool();
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble())
    return std::bit_cast<std::uint64_t>(a.toDouble()) == std::bit_cast<std::uint64_t>(b.toDouble());
  if (a.isString()) return a.toStringRef() == b.toStringRef();
  if (a.isTensor())
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() &&
           a.toTensor().sizes() == b.toTensor().sizes() &&
           bytes_of(a.toTensor()) == bytes_of(b.toTensor());
  return std::ranges::equal(parts_of(a), parts_of(b), equal);
}

}  // namespace lockstep::fuzzing
