#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2 {

/// Python's state_dict() of the same model or optimizer, as a GenericDict, and its
/// load_state_dict(). With read_torch_file and write_torch_file training moves from one language to
/// the other:
///
///     const auto file = lockstep::read_torch_file("resnet18.pt").toGenericDict();
///     lockstep::load_state_dict(*model, file.at("model"));
///     lockstep::load_state_dict(sgd, file.at("optimizer"));
///
/// Tensors of a state dict are the model's own, not copies.
c10::IValue state_dict(const torch::nn::Module& model);

/// Parameters and buffers by name, which must be the same on both sides, with equal shapes and
/// dtypes. All is compared before anything is changed; parameters keep their memory.
/// Throws: CheckpointError naming the tensor.
void load_state_dict(torch::nn::Module& model, const c10::IValue& dict);

/// SGD, Adam and AdamW. Parameters are known by their order in the groups, as in Python.
/// Throws: InvalidArgument for any other optimizer.
c10::IValue state_dict(const torch::optim::Optimizer& optimizer);

/// Options and what is remembered of each parameter; options that LibTorch's C++ side does not have
/// (foreach, fused, …) are left out, maximize is refused.
/// Throws: CheckpointError saying what does not fit; nothing is changed then. InvalidArgument as
/// above.
void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& dict);

/// Reads a file that Python's torch.save wrote: tensors, dicts (as GenericDict), lists, tuples,
/// numbers and texts, nested in any way. Tensors that shared memory share it again; parameters come
/// back as plain tensors. Nothing else is made, and nothing of the file is ever executed.
/// Throws: CheckpointError for a file that cannot be read, one of before PyTorch 1.6, and one that
/// holds a whole module or any other object, which is named.
c10::IValue read_torch_file(const std::filesystem::path& path);

/// Writes such a value as Python's torch.load(path, weights_only=True) reads it. The file is
/// replaced at once when all of it is on disk.
/// Throws: CheckpointError naming the file, and what the system answered or what cannot be stored.
void write_torch_file(const std::filesystem::path& path, const c10::IValue& value);

}  // namespace lockstep

/// The safetensors format: the length of a JSON header (8 bytes), the header, then the tensors'
/// values, all little-endian. Values f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool. Lockstep writes
/// digests of the header and of every tensor into its files, and verifies them when it reads.
/// Source: https://github.com/huggingface/safetensors (the format)
namespace lockstep::inline v0_2::safetensors {

/// Content of one file.
struct Content {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
  bool checked = false;  ///< whether the file had digests, and they were right
};

/// Replaces the file at once, when all of it is on disk; on an error the file that was there stays.
/// Throws: CheckpointError naming the file, and what the system answered or which tensor cannot be
/// stored.
void write(const std::filesystem::path& path, const Content& content);

/// Throws: CheckpointError naming file, tensor, what was found and what was expected.
Content read(const std::filesystem::path& path);

/// Parses the bytes of a file; error messages name it as file. The tensors have memory of their
/// own.
/// Shapes: bytes [size] of uint8.
Content parse(const at::Tensor& bytes, std::string_view file);

}  // namespace lockstep::safetensors
