#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <string>

/// Values of pickles, as the harnesses of unpickle and of torch files look at them.
namespace lockstep::fuzzing {

/// The values of a tensor, which may be a view.
std::string bytes_of(const at::Tensor& tensor);

/// The bytes and parts of a value, or `most` if there are more. Every part counts where it occurs:
/// a value may hold one list many times, and a tensor may repeat one element.
std::size_t expanded_size(const c10::IValue& value, std::size_t most);

/// Whether every tensor lies within its storage. Only for values of a small expanded size.
bool within_storage(const c10::IValue& value);

/// Equal types, numbers with equal bits, texts, and tensors with equal dtypes, sizes and values.
bool equal(const c10::IValue& a, const c10::IValue& b);

}  // namespace lockstep::fuzzing
