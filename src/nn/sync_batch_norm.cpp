#include "lockstep/sync_batch_norm.h"

#include "core/text.h"
#include "lockstep/error.h"
#include "nn/sync_batch_norm_function.h"

namespace lockstep::inline v0_2 {

std::string detail::SyncLayer::who() const {
  return concat("SyncBatchNorm ", name, name.empty() ? "" : " ", "rank ", group.rank(), " of ",
                group.size());
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     const Group& group)
    : BatchNormImplBase(options_), layer_(c10::make_intrusive<detail::SyncLayer>(group)) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  // Without running statistics an evaluation uses its own batch's, without a collective.
  if (!is_training()) return BatchNormImplBase::forward(input);
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0);
  if (num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
  }
  return detail::sync_batch_norm(
      input,
      {.weight = weight, .bias = bias, .running_mean = running_mean, .running_var = running_var},
      momentum, options.eps(), layer_);
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  const bool fits = input.dim() >= 2 && input.dim() <= 5;
  if (!fits || input.size(1) != options.num_features()) {
    throw InvalidArgument(detail::concat(layer_->who(), ": got an input of sizes ", input.sizes(),
                                         ", expected 2 to 5 dimensions, the second of ",
                                         options.num_features(), " channels"));
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  const auto& momentum = options.momentum();
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps()
         << ", momentum=" << (momentum ? detail::concat(*momentum) : "None")
         << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << group().size() << ")";
}

}  // namespace lockstep
