#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/model_view.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2 {

/// The C++ versions of Python's state_dict() and load_state_dict(), with a GenericDict. Together
/// with read_torch_file() and write_torch_file(), they move training between Python and C++:
///
///     const auto file = lockstep::read_torch_file("resnet18.pt").toGenericDict();
///     lockstep::load_state_dict(*model, file.at("model"));
///     lockstep::load_state_dict(sgd, file.at("optimizer"));
///
/// The tensors in the dict share memory with the model; they are not copies.
c10::IValue state_dict(const ModelView& model);

/// Options of load_state_dict().
struct LoadOptions {
  /// Whether it is an error if only the model, or only the dict, has a name.
  bool strict = true;
  /// Returns the model's name of a tensor of the dict; "" skips the tensor. Default: the same name.
  std::function<std::string(const std::string& name)> rename = {};
  /// Whether values of another dtype are converted to the model's, as Python does. Otherwise they
  /// are an error. Real and complex numbers are never converted to each other.
  bool convert_dtypes = false;
};

/// Names that load_state_dict() has not loaded; empty with strict.
struct NotLoaded {
  std::vector<std::string> missing;     ///< in the model, but not in the dict
  std::vector<std::string> unexpected;  ///< in the dict, after rename, but not in the model
};

/// Copies parameters and buffers into the model. Names, shapes and dtypes must be those of the
/// model; names may differ without strict. A tensor of the model with several names needs one of
/// them in the dict. Everything is checked before anything is changed; parameters keep their
/// memory.
///
///     // Everything except the last layer, which has another number of classes.
///     const auto rename = [](const std::string& name) {
///       return name.starts_with("fc.") ? "" : name;
///     };
///     const auto left = lockstep::load_state_dict(*model, dict, {.strict = false, .rename =
///     rename});
///
/// Throws: CheckpointError naming the tensor.
NotLoaded load_state_dict(const ModelView& model, const c10::IValue& dict,
                          const LoadOptions& options = {});
/// The same for tensors by name, such as safetensors::Content::tensors.
NotLoaded load_state_dict(const ModelView& model, const std::map<std::string, at::Tensor>& tensors,
                          const LoadOptions& options = {});

/// The state of an SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS optimizer. Parameters are identified
/// by their position in the parameter groups, as in Python.
/// Throws: InvalidArgument for any other optimizer.
c10::IValue state_dict(const torch::optim::Optimizer& optimizer);

/// Loads the options and the state of each parameter. Options that LibTorch lacks in C++ (foreach,
/// fused, …) are ignored.
/// Throws: CheckpointError for a dict that does not fit, and for maximize=True; nothing is changed
/// then. InvalidArgument for an optimizer of any other class.
void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& dict);

/// Reads a file that Python's torch.save wrote: tensors, dicts (as GenericDict; also OrderedDict,
/// defaultdict and Counter), lists, tuples, numbers and strings, nested in any way. Tensors that
/// shared memory when they were saved share it again. Parameters become plain tensors. A
/// torch.device and a torch.dtype become their texts, "cuda:0" and "torch.float32". No code in the
/// file is executed.
///
/// An entry of a dict with any other object (a sparse or quantised tensor, a function) is left out.
/// skipped: gets the names of these entries, such as "scheduler.lr_lambdas", and what they have. If
/// it is null, a line on stderr has them.
/// Throws: CheckpointError for a file that cannot be read, for a file of a PyTorch before 1.6, and
/// for a file that is such an object, which the message names.
c10::IValue read_torch_file(const std::filesystem::path& path,
                            std::map<std::string, std::string>* skipped = nullptr);

/// Writes such a value in the format that Python's torch.load(path, weights_only=True) reads. The
/// complete new file replaces an old one atomically.
/// Throws: CheckpointError naming the file, and the system error or the value that cannot be
/// stored.
void write_torch_file(const std::filesystem::path& path, const c10::IValue& value);

}  // namespace lockstep

/// The safetensors format: the length of a JSON header (8 bytes), the header, then the tensors'
/// values, all little-endian. Supported dtypes: f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool
/// c64 f8_e4m3 f8_e5m2 f8_e8m0. Lockstep writes digests of the header and of every tensor into its
/// files, and verifies them when it reads. Source: https://github.com/huggingface/safetensors (the
/// format)
namespace lockstep::inline v0_2::safetensors {

/// Content of one file.
struct Content {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
  bool checked = false;  ///< whether the file had digests; wrong digests are an error
};

/// Writes a file. The complete new file replaces an old one atomically; on an error the old file
/// stays.
/// Throws: CheckpointError naming the file, and the system error or the tensor that cannot be
/// stored.
void write(const std::filesystem::path& path, const Content& content);

/// Reads a file.
/// Throws: CheckpointError naming the file, the tensor, the value found and the value expected.
Content read(const std::filesystem::path& path);

/// Parses the bytes of a file; `file` is its name in error messages. The tensors do not share
/// memory with bytes.
/// Shapes: bytes [size] of uint8.
Content parse(const at::Tensor& bytes, std::string_view file);

}  // namespace lockstep::safetensors
