#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <string>

#include "lockstep/checkpoint.h"
#include "lockstep/model_files.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"
#include "tests/train/training.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::content;
using testing::failure;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::Training;

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A checkpoint's bytes, and where its values begin.
struct File {
  explicit File(const std::filesystem::path& path) : bytes(content(path)) {
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    values = 8 + header;
  }
  std::string with_flipped(std::size_t byte, int bit) const {
    std::string changed = bytes;
    changed[byte] = static_cast<char>(changed[byte] ^ (1 << bit));
    return changed;
  }
  std::string bytes;
  std::size_t values;
};

TEST(Digests, AFlippedBitAnywhereIsAnError) {
  const TemporaryFolder folder;
  const auto path = folder / "c";
  Training training;
  training.step(0);
  training.save(path);
  const File file(path);
  const auto before = training.values();
  for (std::size_t byte = 0; byte < file.bytes.size(); byte += byte < 64 ? 1 : 7) {
    write_bytes(path, file.with_flipped(byte, static_cast<int>(byte % 8)));
    ASSERT_THAT(failure([&] { training.load(path); }), HasSubstr(path.string() + ": "))
        << "byte " << byte << " of " << file.bytes.size();
  }
  testing::expect_same(training.values(), before);
  write_bytes(path, file.bytes);
  training.load(path);
}

TEST(Digests, DamagedValuesNameTheTensor) {
  const TemporaryFolder folder;
  const auto path = folder / "c";
  safetensors::write(
      path, {.tensors = {{"a", torch::zeros({3})}, {"b", torch::zeros({2})}}, .metadata = {}});
  const File file(path);
  for (const auto& [offset, name] : {std::pair(0, "a"), std::pair(11, "a"), std::pair(12, "b")}) {
    write_bytes(path, file.with_flipped(file.values + static_cast<std::size_t>(offset), 3));
    EXPECT_THAT(failure([&] { safetensors::read(path); }),
                AllOf(HasSubstr(path.string()), HasSubstr(std::string("tensor '") + name + "'"),
                      HasSubstr("values are damaged")));
  }
  write_bytes(path, file.with_flipped(file.values - 1, 0));
  EXPECT_THAT(failure([&] { safetensors::read(path); }), HasSubstr("header: is damaged"));
}

TEST(Digests, AreKeptToThemselves) {
  const TemporaryFolder folder;
  safetensors::write(folder / "c",
                     {.tensors = {{"a", torch::ones({3})}}, .metadata = {{"mine", "1"}}});
  const auto content = safetensors::read(folder / "c");
  EXPECT_TRUE(content.checked);
  EXPECT_EQ(content.metadata, (std::map<std::string, std::string>{{"mine", "1"}}));
  EXPECT_THAT(failure([&] {
                safetensors::write(folder / "d", {.tensors = {}, .metadata = {{"xxh3", "1"}}});
              }),
              HasSubstr("note 'xxh3': the name is reserved"));
}

}  // namespace
}  // namespace lockstep
