#pragma once

#include <ATen/core/ivalue.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// What Python's state_dict() of the same model or optimizer returns, as a GenericDict, and its
/// load_state_dict(). With read_torch_file and write_torch_file training goes from one language to
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

}  // namespace lockstep
