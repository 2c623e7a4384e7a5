#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <map>
#include <string>

#include "lockstep/error.h"
#include "lockstep/model_files.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/values.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using fuzzing::require;

/// A zip file whose checksums are right: of records [name, length (2 bytes), content]. Empty if
/// LibTorch's writer refuses them, as it does for two of one name.
std::string zip_of(std::string_view records) {
  std::string file;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, std::size_t count) {
    file.append(static_cast<const char*>(bytes), count);
    return count;
  });
  try {
    while (records.size() >= 3) {
      const auto kind = static_cast<unsigned char>(records[0]);
      std::uint16_t length = 0;
      std::memcpy(&length, records.data() + 1, sizeof length);
      const std::string_view content = records.substr(3, length);
      const std::string name = kind == 'p'   ? "data.pkl"
                               : kind == 'b' ? "byteorder"
                               : kind == 'c' ? "constants.pkl"
                                             : "data/" + std::string(1, records[0]);
      writer.writeRecord(name, content.data(), content.size());
      records.remove_prefix(3 + content.size());
    }
    writer.writeEndOfFile();
  } catch (const c10::Error&) {
    return {};
  }
  return file;
}

void check(const std::filesystem::path& folder, std::string_view file) {
  const fuzzing::InputFile input(file);
  const fuzzing::MemoryLimit memory(4096 * file.size() + (4 << 20));
  std::map<std::string, std::string> skipped;
  const auto value = fuzzing::accepted<CheckpointError>(
      input.path().string(), [&] { return read_torch_file(input.path(), &skipped); });
  if (!value || fuzzing::is_large(*value)) return;
  require(fuzzing::within_storage(*value), "every tensor lies within its storage");
  write_torch_file(folder / "again.pt", *value);
  require(fuzzing::equal(read_torch_file(folder / "again.pt"), *value),
          "the value written and read again is equal");
}

}  // namespace
}  // namespace lockstep

/// A zip file, or after a first byte 'r' the records of one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lockstep::testing::TemporaryFolder folder;
  const std::string_view input = lockstep::fuzzing::text_of({data, size});
  lockstep::check(folder.path(),
                  input.starts_with('r') ? lockstep::zip_of(input.substr(1)) : std::string(input));
  return 0;
}
