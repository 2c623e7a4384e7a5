#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/idx.h"
#include "extras/data/select_images.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr std::uint32_t digit_side = 28;
constexpr int digit_classes = 10;

at::Tensor as_targets(const detail::IdxArray& labels) {
  const auto wrong = std::find_if(labels.values.begin(), labels.values.end(),
                                  [](std::uint8_t label) { return label >= digit_classes; });
  if (wrong != labels.values.end())
    throw DataError(detail::concat(
        labels.file.string(), ": offset ",
        labels.header_bytes() + static_cast<std::size_t>(wrong - labels.values.begin()),
        ": expected a label from 0 to ", digit_classes - 1, ", found ", static_cast<int>(*wrong)));
  at::Tensor targets = at::empty({static_cast<std::int64_t>(labels.values.size())}, at::kLong);
  std::copy(labels.values.begin(), labels.values.end(), targets.mutable_data_ptr<std::int64_t>());
  return targets;
}

at::Tensor as_images(const detail::IdxArray& images) {
  at::Tensor tensor = at::empty({images.sizes[0], 1, digit_side, digit_side}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), images.values.data(), images.values.size());
  return tensor;
}

}  // namespace

Mnist::Mnist(const std::filesystem::path& root, Split split) {
  detail::as_operation("Mnist", [&] {
    const std::string prefix = split == Split::train ? "train" : "t10k";
    constexpr std::uint32_t image[] = {digit_side, digit_side};
    const detail::IdxArray images = detail::read_idx(root, prefix + "-images-idx3-ubyte", image);
    const detail::IdxArray labels = detail::read_idx(root, prefix + "-labels-idx1-ubyte", {});
    if (images.sizes[0] != labels.sizes[0])
      throw DataError(detail::concat(labels.file.string(), ": offset 4: expected ", images.sizes[0],
                                     " labels as ", images.file.string(), " has images, found ",
                                     labels.sizes[0]));
    images_ = as_images(images);
    targets_ = as_targets(labels);
  });
}

torch::data::Example<> Mnist::get_batch(c10::ArrayRef<std::size_t> indices) {
  return detail::select(images_, targets_, indices, "Mnist");
}

torch::data::Example<> Mnist::get(std::size_t index) {
  torch::data::Example<> one = get_batch(index);
  return {one.data[0], one.target[0]};
}

std::optional<std::size_t> Mnist::size() const { return static_cast<std::size_t>(images_.size(0)); }

}  // namespace lockstep
