#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/idx.h"
#include "extras/data/select_rows.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr std::uint32_t digit_side = 28;
constexpr int digit_classes = 10;

at::Tensor as_targets(detail::IdxFile& labels) {
  std::vector<std::uint8_t> values(labels.value_bytes());
  labels.read(values);
  const auto wrong =
      std::ranges::find_if(values, [](std::uint8_t label) { return label >= digit_classes; });
  if (wrong != values.end())
    throw DataError(detail::concat(
        labels.path(), ": offset ",
        labels.header_bytes() + static_cast<std::size_t>(wrong - values.begin()),
        ": expected a label from 0 to ", digit_classes - 1, ", found ", static_cast<int>(*wrong)));
  at::Tensor targets = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::ranges::copy(values, targets.mutable_data_ptr<std::int64_t>());
  return targets;
}

}  // namespace

Mnist::Mnist(const std::filesystem::path& root, Split split) {
  detail::as_operation("Mnist", [&] {
    const std::string prefix = split == Split::train ? "train" : "t10k";
    constexpr std::uint32_t image[] = {digit_side, digit_side};
    detail::IdxFile images(root, prefix + "-images-idx3-ubyte", image);
    detail::IdxFile labels(root, prefix + "-labels-idx1-ubyte", {});
    if (images.sizes()[0] != labels.sizes()[0])
      throw DataError(detail::concat(labels.path(), ": offset 4: expected ", images.sizes()[0],
                                     " labels as ", images.path(), " has images, found ",
                                     labels.sizes()[0]));
    images_ = at::empty({images.sizes()[0], 1, digit_side, digit_side}, at::kByte);
    images.read({images_.mutable_data_ptr<std::uint8_t>(), images.value_bytes()});
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
