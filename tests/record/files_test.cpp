#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "record/folder.h"
#include "tests/file_limit.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"
#include "tests/variable.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

TEST(AppendFile, StartsAnewOrGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder / "lines";
  std::ofstream(path) << "one\nhalf a li";
  {
    AppendFile kept(path, true);
    kept.add("two\n");
    EXPECT_EQ(content(path), "one\nhalf a li\ntwo\n");
  }
  { AppendFile(path, true).add("three\n"); }
  EXPECT_EQ(content(path), "one\nhalf a li\ntwo\nthree\n");
  AppendFile fresh(path, false);
  AppendFile moved = std::move(fresh);
  moved.add("four\n");
  EXPECT_EQ(content(path), "four\n");
  EXPECT_EQ(moved.error(), 0);
  AppendFile().add("nowhere");
  EXPECT_EQ(message_of<Error>([] { AppendFile("/nonexistent/lines", false); }),
            "/nonexistent/lines: cannot write: No such file or directory");
}

TEST(AppendFile, EndsWithItsLastWholeRecordWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const auto path = folder / "lines";
  AppendFile file(path, false);
  {
    const FileLimit limit(10);
    file.add("12345\n");
    EXPECT_EQ(file.error(), 0);
    file.add("6789012345\n");  // half of it fits
    EXPECT_EQ(file.error(), EFBIG);
  }
  file.add("too late\n");
  EXPECT_EQ(content(path), "12345\n");
  AppendFile full("/dev/full", true);
  full.add("x");
  EXPECT_EQ(full.error(), ENOSPC);
}

TEST(Files, FollowNoLinkAndReplaceNoFifo) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "data";
  std::filesystem::create_symlink("precious", folder / "link");
  const std::string said =
      "/link: cannot write: it is a symbolic link to precious, expected a file; remove it, or name "
      "another folder";
  for (const bool kept : {true, false})
    EXPECT_THAT(message_of<Error>([&] { AppendFile(folder / "link", kept); }), HasSubstr(said));
  EXPECT_THAT(message_of<Error>([&] { write_file(folder / "link", "new"); }),
              HasSubstr(said.substr(0, said.find(','))));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(content(folder / "precious"), "data");
  ASSERT_EQ(::mkfifo((folder / "page").c_str(), 0600), 0);
  EXPECT_THAT(message_of<Error>([&] { write_file(folder / "page", "new"); }),
              HasSubstr("/page: exists and is not a regular file; name another"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "page"));
}

TEST(RunEnvironment, HasNoSecretAndSaysWhetherDenormalsAreFlushed) {
  const TemporaryFolder folder;
  const auto written = [&] {
    write_environment(folder.path(), {});
    return nlohmann::json::parse(content(folder / environment_name));
  };
  const testing::Variable token("LOCKSTEP_TOKEN", "c0ffee");
  const testing::Variable other("LOCKSTEP_OTHER", "shown");
  const auto variables = written().at("variables");
  EXPECT_EQ(variables.at("LOCKSTEP_TOKEN"), "(set)");
  EXPECT_EQ(variables.at("LOCKSTEP_OTHER"), "shown");
  for (const bool flush : {false, detail::can_flush_denormals}) {
    const detail::DenormalsGuard guard(flush);
    EXPECT_EQ(written().at("denormals"), flush ? "flushed" : "kept");
  }
}

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
  // No record of the step is left if all are replaced.
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

TEST_F(Continued, KeepsTheFileIfTheRecordsCannotBeMovedAndFollowsNoLinkToIt) {
  const std::string all = "{\"step\":1}\n{\"step\":2}\n";
  write(all);
  {
    const FileLimit full(10);
    EXPECT_THROW(discard_repeated(folder.path(), metrics_name, {.step = 1}), Error);
  }
  EXPECT_EQ(text(metrics_name), all);
  std::filesystem::rename(folder / metrics_name, folder / "precious");
  std::filesystem::create_symlink("precious", folder / metrics_name);
  EXPECT_THROW(discard_repeated(folder.path(), metrics_name, {.step = 1}), Error);
  EXPECT_EQ(text("precious"), all);
}

}  // namespace
}  // namespace lockstep::record
