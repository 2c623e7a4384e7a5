#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "core/denormals_guard.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "record/folder.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using testing::TemporaryFolder;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Files of this process grow no further: a full disk in small.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(AppendFile, StartsAnewOrGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder / "lines";
  std::ofstream(path) << "one\nhalf a li";
  {
    AppendFile kept(path, true);
    kept.add("two\n");
    EXPECT_EQ(text_of(path), "one\nhalf a li\ntwo\n");
  }
  { AppendFile(path, true).add("three\n"); }
  EXPECT_EQ(text_of(path), "one\nhalf a li\ntwo\nthree\n");
  AppendFile fresh(path, false);
  AppendFile moved = std::move(fresh);
  moved.add("four\n");
  EXPECT_EQ(text_of(path), "four\n");
  EXPECT_EQ(moved.error(), 0);
  AppendFile().add("nowhere");
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
  EXPECT_EQ(text_of(path), "12345\n");
  AppendFile full("/dev/full", true);
  full.add("x");
  EXPECT_EQ(full.error(), ENOSPC);
}

TEST(AppendFile, NamesWhatCannotBeOpened) {
  try {
    AppendFile("/nonexistent/lines", false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "/nonexistent/lines: cannot write: No such file or directory");
  }
}

TEST(WholeFile, AppearsWhenItIsWhole) {
  const TemporaryFolder folder;
  const auto path = folder / "page";
  {
    WholeFile file(path);
    file.out() << "new";
    EXPECT_FALSE(std::filesystem::exists(path));
    file.commit();
  }
  EXPECT_EQ(text_of(path), "new");
  { WholeFile(path).out() << "abandoned"; }
  EXPECT_EQ(text_of(path), "new");
  {
    const FileLimit limit(10);
    WholeFile file(path);
    file.out() << std::string(100000, 'x');
    EXPECT_THROW(file.commit(), Error);
  }
  EXPECT_EQ(text_of(path), "new");
  EXPECT_THROW(WholeFile("/nonexistent/page"), Error);
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "something is left behind";
}

TEST(RunEnvironment, SaysWhetherDenormalsAreFlushed) {
  const TemporaryFolder folder;
  for (const bool flush : {false, detail::can_flush_denormals}) {
    const detail::DenormalsGuard guard(flush);
    write_environment(folder.path(), {});
    std::ifstream in(folder / environment_name);
    EXPECT_EQ(nlohmann::json::parse(in).at("denormals"), flush ? "flushed" : "kept");
  }
}

}  // namespace
}  // namespace lockstep::record
