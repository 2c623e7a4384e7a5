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

TEST(Digests, AFlippedBitAnywhereIsAnError) {
  const TemporaryFolder folder;
  const auto path = folder / "c";
  Training training;
  training.step(0);
  training.save(path);
  const auto bytes = content(path);
  const auto before = training.values();
  for (std::size_t byte = 0; byte < bytes.size(); byte += byte < 64 ? 1 : 7) {
    auto changed = bytes;
    changed[byte] = static_cast<char>(changed[byte] ^ (1 << byte % 8));
    write_bytes(path, changed);
    ASSERT_THAT(failure([&] { training.load(path); }), HasSubstr(path.string() + ": "))
        << "byte " << byte << " of " << bytes.size();
  }
  testing::expect_same(training.values(), before);
  write_bytes(path, bytes);
  training.load(path);
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
