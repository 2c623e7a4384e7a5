#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

/// The part of Python's pickle that torch.save needs for tensors, dicts, lists, tuples, numbers and
/// texts. It makes nothing else, and calls nothing.
/// Source: https://docs.python.org/3/library/pickletools.html (protocol 2)
namespace lockstep::inline v0_2::detail {

/// The elements of a storage, by its key, in memory that begins with them.
/// Shapes: [count].
using StorageSource =
    std::function<at::Tensor(const std::string& key, at::ScalarType dtype, std::int64_t count)>;

/// Dicts become GenericDict, lists GenericList.
/// Throws: CheckpointError saying what was found where, for anything else than the above.
c10::IValue unpickle(std::string_view bytes, const StorageSource& storages);

/// The opposite; storages gets what the file must hold under the keys "0", "1", …, contiguous, each
/// once even when several tensors share it.
/// Throws: CheckpointError for a value that it has no form for.
std::string pickle(const c10::IValue& value, std::vector<at::Tensor>& storages);

}  // namespace lockstep::detail
