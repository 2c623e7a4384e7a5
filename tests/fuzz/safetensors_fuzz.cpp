#include <ATen/ops/from_blob.h>

#include <cstring>

#include "core/numeric/digest.h"
#include "formats/safetensors.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/values.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::safetensors {
namespace {

using fuzzing::require;

bool equal(const Content& a, const Content& b) {
  return a.metadata == b.metadata && a.tensors.size() == b.tensors.size() &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                    [](const auto& one, const auto& other) {
                      return one.first == other.first && fuzzing::equal(one.second, other.second);
                    });
}

/// The file with the digest of its header put right, if it has one: a mutation cannot hit it.
std::string with_digest(std::string file) {
  std::uint64_t length = 0;
  const std::size_t place = length_bytes + checked_header.size();
  if (!std::string_view(file)
           .substr(std::min(file.size(), length_bytes))
           .starts_with(checked_header))
    return file;
  std::memcpy(&length, file.data(), length_bytes);
  if (length > file.size() - length_bytes || length < checked_header.size() + digest_digits)
    return file;
  file.replace(place, digest_digits, digest_digits, '0');
  const auto header = std::as_bytes(std::span(file)).subspan(length_bytes, length);
  return file.replace(place, digest_digits, digits_of(detail::digest(header)));
}

void check(const std::filesystem::path& folder, std::string file) {
  const fuzzing::InputFile input(file);
  const std::string name = input.path().string();
  const fuzzing::MemoryLimit memory(1024 * file.size() + (1 << 20));
  const auto parsed = fuzzing::accepted<CheckpointError>(name, [&] {
    return parse(at::from_blob(file.data(), {static_cast<std::int64_t>(file.size())}, at::kByte),
                 name);
  });
  const auto read_back =
      fuzzing::accepted<CheckpointError>(name, [&] { return read(input.path()); });
  require(parsed.has_value() == read_back.has_value(), "bytes are read like a file");
  if (!parsed) return;
  require(equal(*parsed, *read_back) && parsed->checked == read_back->checked,
          "bytes hold the same as a file");
  std::uint64_t bytes = 0;  // of the header first
  std::memcpy(&bytes, file.data(), length_bytes);
  for (const auto& [tensor, values] : parsed->tensors) bytes += values.nbytes();
  require(length_bytes + bytes == file.size(), "header and tensors fill the file");

  write(folder / "again.safetensors", *parsed);
  const Content again = read(folder / "again.safetensors");
  require(again.checked, "what Lockstep writes has digests");
  require(equal(again, *parsed), "the content written and read again is equal");
}

}  // namespace
}  // namespace lockstep::safetensors

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::safetensors;
  static const lockstep::testing::TemporaryFolder folder;
  const std::string file(lockstep::fuzzing::text_of({data, size}));
  check(folder.path(), file);
  if (const std::string other = with_digest(file); other != file) check(folder.path(), other);
  return 0;
}
