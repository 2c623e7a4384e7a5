#include <array>
#include <vector>

#include "extras/data/idx.h"
#include "lockstep/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using detail::IdxFile;
using fuzzing::require;
using fuzzing::write_file;

struct IdxArray {
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint8_t> values;
};

IdxArray read_idx(const std::filesystem::path& folder, std::span<const std::uint32_t> inner) {
  IdxFile file(folder, "array", inner);
  IdxArray array{.sizes = file.sizes(), .values = std::vector<std::uint8_t>(file.value_bytes())};
  file.read(array.values);
  return array;
}

/// The same array as an uncompressed file.
std::string encoded(const IdxArray& array) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(array.sizes.size())};
  for (const std::uint32_t size : array.sizes)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  bytes.append(array.values.begin(), array.values.end());
  return bytes;
}

void check(const std::filesystem::path& folder, std::string_view file,
           std::span<const std::uint32_t> inner) {
  // deflate packs 1032 bytes into one.
  const fuzzing::MemoryLimit memory(2 * 1032 * file.size() + (4 << 20));
  write_file(folder / "array", file);
  const auto array = fuzzing::accepted<DataError>((folder / "array").string(),
                                                  [&] { return read_idx(folder, inner); });
  if (!array) return;
  require(array->sizes.size() == inner.size() + 1, "an array has the expected dimensions");
  std::size_t count = array->sizes.front();
  for (std::size_t i = 0; i < inner.size(); ++i) {
    require(array->sizes[i + 1] == inner[i], "an inner dimension has the expected size");
    count *= inner[i];
  }
  require(array->values.size() == count, "an array has as many values as its sizes say");

  const std::string plain = encoded(*array);
  const bool compressed = file.starts_with("\x1f\x8b");
  require(compressed || plain == file, "an uncompressed file holds the array and nothing else");
  write_file(folder / "array", plain);
  const IdxArray again = read_idx(folder, inner);
  require(again.sizes == array->sizes && again.values == array->values,
          "the array read from its own encoding is equal");
}

}  // namespace
}  // namespace lockstep

/// The first byte chooses the inner dimensions that the reader expects.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lockstep::testing::TemporaryFolder folder;
  constexpr std::array<std::uint32_t, 2> inner{2, 3};
  if (size == 0) return 0;
  const std::size_t dimensions = data[0] % (inner.size() + 1);
  lockstep::check(folder.path(), lockstep::fuzzing::text_of({data + 1, size - 1}),
                  std::span(inner).first(dimensions));
  return 0;
}
