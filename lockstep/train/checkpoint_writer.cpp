#include "lockstep/train/checkpoint_writer.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/together.h"
#include "lockstep/train/checkpoint_content.h"
#include "lockstep/train/checkpoint_file.h"

namespace lockstep {

namespace {

/// A copy of from, in the memory of a former copy where a tensor of the same name fits.
safetensors::Content copy_of(const safetensors::Content& from, const safetensors::Content& former) {
  const at::NoGradGuard no_grad;
  safetensors::Content copy{.tensors = {}, .metadata = from.metadata};
  for (const auto& [name, tensor] : from.tensors) {
    const auto found = former.tensors.find(name);
    const bool fits = found != former.tensors.end() && found->second.sizes() == tensor.sizes() &&
                      found->second.scalar_type() == tensor.scalar_type();
    copy.tensors[name] = fits ? found->second.copy_(tensor)
                              : tensor.detach().cpu().clone(at::MemoryFormat::Contiguous);
  }
  return copy;
}

}  // namespace

void CheckpointWriter::save(const Checkpoint& checkpoint, const std::filesystem::path& path,
                            const CheckpointMeta& meta) {
  wait();
  safetensors::Content own;
  together(group_, [&] {
    own = detail::named(
        path, [&] { return detail::content_of(checkpoint, meta, group_.rank(), group_.size()); });
    if (group_.rank() == 0) own = copy_ = copy_of(own, copy_);
  });
  const safetensors::Content all = detail::collect(path, own, group_);
  if (group_.rank() == 0)
    write_ = std::async(std::launch::async, [path, all] { safetensors::write(path, all); });
}

void CheckpointWriter::wait() {
  together(group_, [&] {
    if (write_.valid()) write_.get();
  });
}

}  // namespace lockstep
