#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>

namespace lockstep {

/// What Python's torch.save wrote: tensors, dicts (as GenericDict), lists, tuples, numbers and
/// texts, nested in any way. Tensors that shared memory share it again; parameters come back as
/// plain tensors. Nothing else is made, and nothing of the file is ever executed. Throws:
/// CheckpointError for a file that cannot be read, one of before PyTorch 1.6, and one that holds a
/// whole module or any other object, which is named.
c10::IValue read_torch_file(const std::filesystem::path& path);

/// Writes such a value as Python's torch.load(path, weights_only=True) reads it. The file is
/// replaced at once when all of it is on disk.
/// Throws: CheckpointError naming the file, and what the system answered or what cannot be stored.
void write_torch_file(const std::filesystem::path& path, const c10::IValue& value);

}  // namespace lockstep
