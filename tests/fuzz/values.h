#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

/// Values of pickles, as the harnesses of unpickle and of torch files look at them.
namespace lockstep::fuzzing {

/// The parts of a list, tuple or dict; keys and values of a dict alternate.
std::vector<c10::IValue> parts_of(const c10::IValue& value);

/// Whether a value has many bytes and parts. Every part counts where it occurs: a value may hold
/// one list many times, and a tensor may repeat one element.
bool is_large(const c10::IValue& value);

/// Whether every tensor lies within its storage. Not for large values.
bool within_storage(const c10::IValue& value);

/// Equal types, numbers with equal bits, texts, and tensors with equal dtypes, sizes and values.
bool equal(const c10::IValue& a, const c10::IValue& b);

}  // namespace lockstep::fuzzing
