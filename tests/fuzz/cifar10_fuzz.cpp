#include <algorithm>

#include "lockstep/datasets.h"
#include "lockstep/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using fuzzing::require;
using fuzzing::write_file;

constexpr std::size_t record_bytes = 1 + 3 * 32 * 32;

bool valid(std::string_view file) {
  if (file.empty() || file.size() % record_bytes != 0) return false;
  for (std::size_t at = 0; at < file.size(); at += record_bytes)
    if (static_cast<unsigned char>(file[at]) >= 10) return false;
  return true;
}

/// The records of a dataset as they stand in a file.
std::string encoded(const Cifar10& data) {
  const auto* image = static_cast<const char*>(data.images().const_data_ptr());
  const auto* target = data.targets().const_data_ptr<std::int64_t>();
  std::string bytes;
  for (std::size_t i = 0; i < data.size().value(); ++i) {
    bytes += static_cast<char>(target[i]);
    bytes.append(image + i * (record_bytes - 1), record_bytes - 1);
  }
  return bytes;
}

void check(const std::filesystem::path& folder, std::string_view first, std::string_view second) {
  const fuzzing::MemoryLimit memory(8 * (first.size() + second.size()) + (1 << 20));
  write_file(folder / "data_batch_1.bin", first);
  write_file(folder / "data_batch_2.bin", second);
  write_file(folder / "test_batch.bin", first);
  const auto train = fuzzing::accepted<DataError>(
      folder.string(), [&] { return Cifar10(folder, Cifar10::Split::train); });
  const auto test = fuzzing::accepted<DataError>(
      folder.string(), [&] { return Cifar10(folder, Cifar10::Split::test); });
  require(test.has_value() == valid(first), "a file of whole images with valid labels is read");
  require(train.has_value() == (valid(first) && valid(second)), "so are two files");
  if (test) require(encoded(*test) == first, "the test images are those of the file");
  if (train)
    require(encoded(*train) == std::string(first) + std::string(second),
            "the training images are those of both files in their order");
}

}  // namespace
}  // namespace lockstep

/// The first byte is the number of images in the first of two files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lockstep::testing::TemporaryFolder folder;
  if (size == 0) return 0;
  const std::string_view images = lockstep::fuzzing::text_of({data + 1, size - 1});
  const std::size_t first = std::min(data[0] * lockstep::record_bytes, images.size());
  lockstep::check(folder.path(), images.substr(0, first), images.substr(first));
  return 0;
}
