#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/select_rows.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr std::size_t image_side = 32;
constexpr std::size_t image_bytes = 3 * image_side * image_side;
constexpr std::size_t record_bytes = 1 + image_bytes;
constexpr std::uint8_t image_classes = 10;
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

/// Appends a file's records.
void append(const std::filesystem::path& path, std::vector<char>& records) {
  const std::string file = path.string();
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) throw DataError(detail::concat(file, ": cannot open: ", std::strerror(errno)));
  const std::streamoff end = in.tellg();
  const std::size_t size = end > 0 ? static_cast<std::size_t>(end) : 0;
  const std::size_t whole = size / record_bytes * record_bytes;
  if (size == 0 || whole != size)
    throw DataError(detail::concat(file, ": offset ", whole, ": expected an image of ",
                                   record_bytes, " bytes, found the end after ", size - whole));
  const std::size_t before = records.size();
  records.resize(before + size);
  in.seekg(0);
  if (!in.read(records.data() + before, static_cast<std::streamsize>(size)))
    throw DataError(detail::concat(file, ": offset ", in.gcount(), ": expected ", size,
                                   " bytes, found the end: ", std::strerror(errno)));
  for (std::size_t at = 0; at < size; at += record_bytes) {
    const auto label = static_cast<std::uint8_t>(records[before + at]);
    if (label >= image_classes)
      throw DataError(detail::concat(file, ": offset ", at, ": expected a label from 0 to ",
                                     image_classes - 1, ", found ", static_cast<int>(label)));
  }
}

}  // namespace

Cifar10::Cifar10(const std::filesystem::path& root, Split split) {
  std::vector<char> records;
  detail::as_operation("Cifar10", [&] {
    for (const auto& file : files_of(root, split)) append(file, records);
  });
  const auto count = static_cast<std::int64_t>(records.size() / record_bytes);
  images_ = at::empty({count, 3, image_side, image_side}, at::kByte);
  targets_ = at::empty({count}, at::kLong);
  auto* image = images_.mutable_data_ptr<std::uint8_t>();
  auto* target = targets_.mutable_data_ptr<std::int64_t>();
  for (std::size_t at = 0; at < records.size(); at += record_bytes) {
    *target++ = static_cast<std::uint8_t>(records[at]);
    std::memcpy(image, records.data() + at + 1, image_bytes);
    image += image_bytes;
  }
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
