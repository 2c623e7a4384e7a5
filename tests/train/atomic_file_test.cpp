#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <torch/nn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>
#include <thread>

#include "core/system/files.h"
#include "lockstep/checkpoint.h"
#include "tests/file_limit.h"
#include "tests/groups.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace {

std::atomic<int> lock_error{0};   // of every flock(), unless it is 0
std::atomic<bool> delays{false};  // the next fsync()
std::mutex syncing;
std::set<std::string> synced;  // what fsync() was called with

}  // namespace

// These take the place of the C library's functions in the whole program.

extern "C" int flock(int fd, int operation) noexcept {
  if (lock_error == 0) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = lock_error;
  return -1;
}

// Waits for no disk.
extern "C" int fsync(int fd) {
  if (delays.exchange(false)) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::error_code ignored;
  const std::lock_guard lock(syncing);
  synced.insert(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored));
  return 0;
}

namespace lockstep::inline v0_2::detail {
namespace {

using namespace testing;

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
  const auto error = failure([&] {
    const FileLimit limit(4096);
    write_all(path, std::string(10000, 'x'));
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr(path.string() + ": cannot write"), HasSubstr("File too large")));
  EXPECT_EQ(content(path), "short");
  EXPECT_EQ(files_in(folder.path()), 1);
  // A name without a folder is in the working folder.
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_all("file", "here");
  std::filesystem::current_path(before);
  EXPECT_EQ(content(path), "here");
}

TEST(AtomicFile, WhatLiesInItsPlaceIsUsedUpOrRemovedButALinkStays) {
  const TemporaryFolder folder;
  std::ofstream(folder / ".file.partial") << "what a process killed while writing leaves";
  std::ofstream(folder / "precious") << "data";
  ASSERT_EQ(mkfifo((folder / ".first.partial").c_str(), 0600), 0);
  std::filesystem::create_symlink("precious", folder / ".second.partial");
  std::filesystem::create_hard_link(folder / "precious", folder / ".third.partial");
  for (const char* name : {"file", "first", "second", "third"}) {
    write_all(folder / name, "new");
    EXPECT_EQ(content(folder / name), "new");
  }
  EXPECT_EQ(content(folder / "precious"), "data");
  EXPECT_EQ(files_in(folder.path()), 5);
  folder.write("elsewhere/target", "old");
  std::filesystem::create_symlink("elsewhere/target", folder / "inner");
  std::filesystem::create_symlink("inner", folder / "link");
  write_all(folder / "link", "new");
  EXPECT_EQ(std::filesystem::read_symlink(folder / "link"), "inner");
  EXPECT_EQ(content(folder / "elsewhere/target"), "new");
  EXPECT_EQ(files_in(folder / "elsewhere"), 1);
}

TEST(AtomicFile, IsOneWritersAlsoWhereItCannotBeLocked) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  {
    AtomicFile first(path, checkpoint);
    first.write("first");
    EXPECT_THAT(failure([&] { AtomicFile second(path, checkpoint); }),
                AllOf(HasSubstr(path.string()),
                      HasSubstr("another process is writing this file; on several ranks, pass "
                                "their group to save(), or save on one of them")));
    first.commit();
    EXPECT_EQ(content(path), "first");
  }
  std::filesystem::remove(path);
  lock_error = ENOLCK;
  for (const auto use : {checkpoint, AtomicFile::Use::log}) AtomicFile(path, use).commit();
  lock_error = 0;
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(AtomicFile, NewFoldersOfCheckpointsAreOnDisk) {
  const TemporaryFolder folder;
  synced.clear();
  run_groups(1, [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    CheckpointFolder run(folder / "runs/first");
    run.save({.model = *model}, {}, group);
    CheckpointWriter writer(group);
    delays = true;
    const auto behind = run.save_behind(writer, {.model = *model}, {});
    EXPECT_NE(run.save({.model = *model}, {}, group), behind) << "which is not on disk yet";
  });
  const auto path = std::filesystem::canonical(folder.path());
  for (const auto& each : {path, path / "runs", path / "runs/first"})
    EXPECT_TRUE(synced.contains(each.string())) << each;
  EXPECT_EQ(failure([&] { create_folders(folder / "runs/first"); }), "");
}

TEST(AtomicFile, APlaceThatCannotTakeItIsAnError) {
  const TemporaryFolder folder;
  std::ofstream(folder / "plain") << "x";
  std::filesystem::create_symlink("gone", folder / "link");
  std::filesystem::create_symlink("loop", folder / "loop");
  const std::pair<const char*, const char*> cases[] = {
      {"no/such/file", "No such file"},
      {"plain/file", "Not a directory"},
      {".", "is not a regular file; name another"},
      {"", "is not the name of a file"},
      {"link", "is a symbolic link to gone, which cannot be resolved: No such file"},
      {"loop", "cannot be resolved"}};
  for (const auto& one : cases)
    EXPECT_THAT(failure([&] { AtomicFile(folder / one.first, checkpoint); }),
                AllOf(HasSubstr((folder / one.first).string()), HasSubstr(one.second)));
  if (geteuid() != 0) {
    std::filesystem::create_directory(folder / "closed");
    chmod((folder / "closed").c_str(), 0555);
    EXPECT_THAT(failure([&] { AtomicFile(folder / "closed/file", checkpoint); }),
                HasSubstr("Permission denied"));
  }
}

}  // namespace
}  // namespace lockstep::detail
