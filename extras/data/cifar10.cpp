#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/images/image.h"
#include "extras/data/select_rows.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr std::int64_t image_side = 32;
constexpr std::int64_t image_bytes = 3 * image_side * image_side;
constexpr std::size_t record_bytes = 1 + image_bytes;
constexpr int image_classes = 10;
constexpr int max_batches = 5;

std::filesystem::path batch_file(const std::filesystem::path& root, int number) {
  return root / detail::concat("data_batch_", number, ".bin");
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& root,
                                            Cifar10::Split split) {
  if (split == Cifar10::Split::test) return {root / "test_batch.bin"};
  std::vector<std::filesystem::path> files{batch_file(root, 1)};
  std::error_code ignored;
  for (int number = 2; number <= max_batches; ++number) {
    const auto file = batch_file(root, number);
    if (!std::filesystem::exists(file, ignored)) continue;
    const auto before = batch_file(root, number - 1);
    if (files.back() != before)
      throw DataError(detail::concat("found ", file.string(), ", but not ", before.string()));
    files.push_back(file);
  }
  return files;
}

/// Throws: DataError unless the bytes of a file are images with labels.
void check_records(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::string file = path.string();
  const std::size_t whole = bytes.size() / record_bytes * record_bytes;
  if (bytes.empty() || whole != bytes.size())
    throw DataError(detail::concat(file, ": offset ", whole, ": expected an image of ",
                                   record_bytes, " bytes, found the end after ",
                                   bytes.size() - whole));
  for (std::size_t at = 0; at < bytes.size(); at += record_bytes) {
    const int label = std::to_integer<int>(bytes[at]);
    if (label >= image_classes)
      throw DataError(detail::concat(file, ": offset ", at, ": expected a label from 0 to ",
                                     image_classes - 1, ", found ", label));
  }
}

}  // namespace

Cifar10::Cifar10(const std::filesystem::path& root, Split split) {
  std::vector<std::vector<std::byte>> files;  // memory of the views
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> targets;
  detail::as_operation("Cifar10", [&] {
    for (const auto& path : files_of(root, split)) {
      auto& bytes = files.emplace_back(detail::read_file(path));
      check_records(path, bytes);
      const auto count = static_cast<std::int64_t>(bytes.size() / record_bytes);
      const auto records = at::from_blob(bytes.data(), {count, record_bytes}, at::kByte);
      targets.push_back(records.select(1, 0));
      images.push_back(records.narrow(1, 1, image_bytes));
    }
  });
  images_ = at::cat(images).view({-1, 3, image_side, image_side});
  targets_ = at::cat(targets).to(at::kLong);
}

Cifar10::Cifar10(at::Tensor images, at::Tensor targets)
    : images_(std::move(images)), targets_(std::move(targets)) {
  const auto count = images_.dim() == 4 ? images_.size(0) : 0;
  if (images_.scalar_type() != at::kByte || images_.sizes() != at::IntArrayRef({count, 3, 32, 32}))
    detail::throw_invalid("Cifar10", "got images ", images_.sizes(), " of ",
                          toString(images_.scalar_type()), ", expected [size, 3, 32, 32] of Byte");
  if (targets_.scalar_type() != at::kLong || targets_.sizes() != at::IntArrayRef({count}) ||
      targets_.lt(0).logical_or(targets_.ge(image_classes)).any().item<bool>())
    detail::throw_invalid("Cifar10", "got targets ", targets_.sizes(), " of ",
                          toString(targets_.scalar_type()), ", expected [", count,
                          "] of Long from 0 to ", image_classes - 1);
}

torch::data::Example<> Cifar10::get_batch(c10::ArrayRef<std::size_t> indices) {
  return detail::select(images_, targets_, indices, "Cifar10");
}

std::optional<std::size_t> Cifar10::size() const {
  return static_cast<std::size_t>(images_.size(0));
}

}  // namespace lockstep
