#include <fstream>
#include <string>

#include "lockstep/error.h"
#include "record/folder.h"
#include "tests/file_limit.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

class Continued : public ::testing::Test {
 protected:
  void write(const std::string& text) const {
    std::ofstream(folder / metrics_name, std::ios::binary) << text;
  }
  std::string text(const char* name) const { return testing::content(folder / name); }
  const TemporaryFolder folder;
};

TEST_F(Continued, MovesTheRecordsOfLaterSteps) {
  const std::string kept =
      "{\"step\":1,\"elapsed\":2.5,\"loss\":5}\nno "
      "record\n{\"loss\":4}\n{\"step\":2,\"elapsed\":4}\n";
  const std::string later = "{\"step\":3,\"elapsed\":9,\"loss\":3}\n";
  write(kept + later + "{\"step\":4,\"loss\":2}");
  const auto result = discard_repeated(folder.path(), metrics_name, {.step = 2});
  EXPECT_EQ(result.records, 2U);
  EXPECT_EQ(result.elapsed, 4);
  EXPECT_TRUE(result.keeps_step);
  EXPECT_EQ(text(metrics_name), kept);
  EXPECT_THAT(text(discarded_name), StartsWith("{\"discarded_from\":\"metrics.jsonl\","
                                               "\"continued_at_step\":2,\"time\":\""));
  EXPECT_THAT(text(discarded_name), EndsWith("\n" + later + "{\"step\":4,\"loss\":2}\n"));
}

TEST_F(Continued, ReplacesARecordOfTheSameNames) {
  write(
      "{\"step\":5,\"elapsed\":1,\"loss\":1}\n{\"step\":5,\"loss\":1,\"rate\":2}\n{\"step\":5,"
      "\"rate\":2}\n");
  const auto result =
      discard_repeated(folder.path(), metrics_name, {.step = 5, .names = {"loss", "x"}});
  EXPECT_EQ(result.records, 1U);
  EXPECT_TRUE(result.keeps_step);
  EXPECT_EQ(text(metrics_name), "{\"step\":5,\"loss\":1,\"rate\":2}\n{\"step\":5,\"rate\":2}\n");
}

TEST_F(Continued, KeepsNoRecordOfItsStepIfAllAreReplaced) {
  write("{\"step\":4,\"loss\":2}\n{\"step\":5,\"loss\":1}\n");
  EXPECT_FALSE(
      discard_repeated(folder.path(), metrics_name, {.step = 5, .names = {"loss"}}).keeps_step);
}

TEST_F(Continued, LeavesAFileAloneThatHasNothingLater) {
  EXPECT_EQ(discard_repeated(folder.path(), metrics_name, {.step = 2}).records, 0U);
  EXPECT_FALSE(std::filesystem::exists(folder / metrics_name));
  write("{\"step\":1,\"elapsed\":2}\n{\"st");
  EXPECT_EQ(discard_repeated(folder.path(), metrics_name, {.step = 1}).elapsed, 2);
  EXPECT_EQ(text(metrics_name), "{\"step\":1,\"elapsed\":2}\n{\"st");
  EXPECT_FALSE(std::filesystem::exists(folder / discarded_name));
}

TEST_F(Continued, KeepsTheFileIfTheRecordsCannotBeMoved) {
  const std::string all = "{\"step\":1}\n{\"step\":2}\n";
  write(all);
  {
    const FileLimit full(10);
    EXPECT_THROW(discard_repeated(folder.path(), metrics_name, {.step = 1}), Error);
  }
  EXPECT_EQ(text(metrics_name), all);
}

TEST_F(Continued, FollowsNoLinkToTheFile) {
  const std::string all = "{\"step\":1}\n{\"step\":2}\n";
  std::ofstream(folder / "precious") << all;
  std::filesystem::create_symlink("precious", folder / metrics_name);
  EXPECT_THROW(discard_repeated(folder.path(), metrics_name, {.step = 1}), Error);
  EXPECT_EQ(text("precious"), all);
}

}  // namespace
}  // namespace lockstep::record
