#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <torch/nn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>

#include "core/system/files.h"
#include "lockstep/checkpoint.h"
#include "tests/file_limit.h"
#include "tests/groups.h"
#include "tests/temporary_folder.h"
#include "tests/train/checkpoint_failure.h"

namespace {

std::atomic<int> lock_error{0};  // of every flock(), unless it is 0
std::mutex syncing;
std::set<std::string> synced;  // what fsync() was called with

}  // namespace

// These take the place of the C library's functions in the whole program.

extern "C" int flock(int fd, int operation) noexcept {
  if (lock_error == 0) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = lock_error;
  return -1;
}

extern "C" int fsync(int fd) {
  {
    std::error_code ignored;
    const std::lock_guard lock(syncing);
    synced.insert(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored));
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace lockstep::inline v0_2::detail {
namespace {

using lockstep::testing::content;
using lockstep::testing::failure;
using lockstep::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto checkpoint = AtomicFile::Use::checkpoint;

void write_all(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path, checkpoint);
  file.write(text);
  file.commit();
}

std::ptrdiff_t files_in(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(AtomicFile, AppearsWhenCompleteAndGivenUpLeavesTheOldOne) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  {
    AtomicFile file(path, checkpoint);
    file.write("a longer old text");
    EXPECT_FALSE(std::filesystem::exists(path));
    file.commit();
    EXPECT_EQ(content(path), "a longer old text");
  }
  EXPECT_EQ(files_in(folder.path()), 1);
  {
    AtomicFile file(path, checkpoint);
    file.write("half of");
  }
  EXPECT_EQ(content(path), "a longer old text");
  EXPECT_EQ(files_in(folder.path()), 1);
  write_all(path, "short");
  EXPECT_EQ(content(path), "short");
}

TEST(AtomicFile, WhatAKilledWriterLeftIsUsedUp) {
  const TemporaryFolder folder;
  std::ofstream(folder / ".file.partial") << "what a process killed while writing leaves";
  write_all(folder / "file", "new");
  EXPECT_EQ(content(folder / "file"), "new");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(AtomicFile, WhatIsNoOwnFileInItsPlaceIsRemoved) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "data";
  ASSERT_EQ(mkfifo((folder / ".first.partial").c_str(), 0600), 0);
  std::filesystem::create_symlink("precious", folder / ".second.partial");
  std::filesystem::create_hard_link(folder / "precious", folder / ".third.partial");
  for (const char* name : {"first", "second", "third"}) {
    write_all(folder / name, "new");
    EXPECT_EQ(content(folder / name), "new");
  }
  EXPECT_EQ(content(folder / "precious"), "data");
}

TEST(AtomicFile, TwoWritersDoNotMix) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  AtomicFile first(path, checkpoint);
  first.write("first");
  EXPECT_THAT(failure([&] { AtomicFile second(path, checkpoint); }),
              AllOf(HasSubstr(path.string()), HasSubstr("another process is writing")));
  first.commit();
  EXPECT_EQ(content(path), "first");
}

TEST(AtomicFile, AFileThatCannotBeLockedIsNotLeftBehind) {
  const TemporaryFolder folder;
  lock_error = ENOLCK;
  const std::string error = failure([&] { AtomicFile(folder / "file", checkpoint); });
  EXPECT_EQ(files_in(folder.path()), 0);
  AtomicFile(folder / "log", AtomicFile::Use::log).commit();
  lock_error = 0;
  EXPECT_THAT(error, HasSubstr("cannot lock the file: No locks available"));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(AtomicFile, NewFoldersOfCheckpointsAreOnDisk) {
  const TemporaryFolder folder;
  synced.clear();
  testing::run_groups(1, [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    CheckpointFolder run(folder / "runs/first");
    run.save({.model = *model}, {}, group);
  });
  const auto path = std::filesystem::canonical(folder.path());
  for (const auto& each : {path, path / "runs", path / "runs/first"})
    EXPECT_TRUE(synced.contains(each.string())) << each;
  EXPECT_THAT(failure([&] { create_folders(folder / "runs/first"); }), HasSubstr("no Checkpoint"));
}

TEST(AtomicFile, ANameWithoutAFolderIsInTheWorkingFolder) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_all("file", "here");
  std::filesystem::current_path(before);
  EXPECT_EQ(content(folder / "file"), "here");
}

TEST(AtomicFile, AFolderThatCannotTakeItIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THAT(failure([&] { AtomicFile(folder / "no/such/file", checkpoint); }),
              AllOf(HasSubstr((folder / "no/such/file").string()), HasSubstr("No such file")));
  std::ofstream(folder / "plain") << "x";
  EXPECT_THAT(failure([&] { AtomicFile(folder / "plain/file", checkpoint); }),
              HasSubstr("Not a directory"));
  EXPECT_THAT(failure([&] { AtomicFile(folder.path(), checkpoint); }),
              HasSubstr("is not a regular file; name another"));
  EXPECT_THAT(failure([&] { AtomicFile(folder / "", checkpoint); }),
              HasSubstr("is not the name of a file"));
  if (geteuid() != 0) {
    std::filesystem::create_directory(folder / "closed");
    chmod((folder / "closed").c_str(), 0555);
    EXPECT_THAT(failure([&] { AtomicFile(folder / "closed/file", checkpoint); }),
                HasSubstr("Permission denied"));
  }
}

TEST(AtomicFile, ALinkStaysALink) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "elsewhere");
  write_all(folder / "elsewhere/target", "old");
  std::filesystem::create_symlink("elsewhere/target", folder / "inner");
  std::filesystem::create_symlink("inner", folder / "link");
  write_all(folder / "link", "new");
  EXPECT_EQ(std::filesystem::read_symlink(folder / "link"), "inner");
  EXPECT_EQ(content(folder / "elsewhere/target"), "new");
  EXPECT_EQ(files_in(folder / "elsewhere"), 1);
}

TEST(AtomicFile, ALinkThatLeadsNowhereIsAnError) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("gone", folder / "link");
  EXPECT_THAT(
      failure([&] { AtomicFile(folder / "link", checkpoint); }),
      AllOf(HasSubstr((folder / "link").string()),
            HasSubstr("is a symbolic link to gone, which cannot be resolved: No such file")));
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(failure([&] { AtomicFile(folder / "loop", checkpoint); }),
              HasSubstr("cannot be resolved"));
}

TEST(AtomicFile, ALimitOnFileSizeLeavesTheOldOne) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  write_all(path, "old");

  const auto error = failure([&] {
    const testing::FileLimit limit(4096);
    write_all(path, std::string(10000, 'x'));
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr(path.string() + ": cannot write"), HasSubstr("File too large")));
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
}

}  // namespace
}  // namespace lockstep::detail
