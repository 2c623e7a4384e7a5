#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "core/system/files.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;
using lockstep::detail::FolderLock;

/// The error of taking the lock; "" for none.
std::string lock_refusal(const std::filesystem::path& folder, std::string_view purpose = "test") {
  return message_of<Error>([&] { const FolderLock lock(folder, purpose, "second"); });
}

/// Starts another process that holds the lock until it is killed.
pid_t start_holder(const std::filesystem::path& folder) {
  int ready[2];
  EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const FolderLock lock(folder, "test", "first");
    EXPECT_EQ(::write(ready[1], "x", 1), 1);
    ::pause();
    ::_exit(0);
  }
  ::close(ready[1]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  return pid;
}

TEST(FolderLock, OfOnePurposeNamesTheOtherJobAtAnyPathOfTheFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_directory_symlink("real", folder / "link");
  const pid_t holder = start_holder(folder / "real");
  for (const char* name : {"real", "link"}) {
    EXPECT_THAT(
        lock_refusal(folder / name),
        AllOf(HasSubstr(concat((folder / name).string(),
                               ": another job writes to this folder: ", "run first on host ",
                               lockstep::detail::host_name(), ", pid ", holder, ", since 20")),
              HasSubstr(" UTC. Wait for its end or stop it, or name another folder.")));
  }
  EXPECT_EQ(lock_refusal(folder / "real", "other"), "");
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "real" / ".lockstep-test.lock")) << "it was killed";
  EXPECT_EQ(lock_refusal(folder / "real"), "");
}

TEST(FolderLock, IsSharedWithinAProcessAndLeavesNoFile) {
  const TemporaryFolder folder;
  const auto file = folder / ".lockstep-test.lock";
  {
    const FolderLock first(folder.path(), "test", "one");
    EXPECT_EQ(lock_refusal(folder.path()), "");
    EXPECT_TRUE(std::filesystem::exists(file)) << "the first still holds it";
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(FolderLock, OutlivesAForkedChild) {
  const TemporaryFolder folder;
  std::optional<FolderLock> lock(std::in_place, folder.path(), "test", "parent");
  const pid_t child = ::fork();
  if (child == 0) {
    lock.reset();  // must not drop the parent's
    ::_exit(lock_refusal(folder.path()).find("run parent") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / ".lockstep-test.lock"));
}

TEST(FolderLock, OfAFolderThatWasMadeAgainIsTakenAgain) {
  const TemporaryFolder folder;
  const auto inner = folder / "inner";
  std::filesystem::create_directory(inner);
  const FolderLock before(inner, "test", "one");
  std::filesystem::remove_all(inner);
  std::filesystem::create_directory(inner);
  const FolderLock after(inner, "test", "one");
  EXPECT_TRUE(std::filesystem::exists(inner / ".lockstep-test.lock"));
}

TEST(FolderLock, FollowsNoLink) {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "data";
  std::filesystem::create_symlink("precious", folder / ".lockstep-test.lock");
  EXPECT_THAT(lock_refusal(folder.path()),
              HasSubstr("cannot make the lock file .lockstep-test.lock: "));
  EXPECT_EQ(std::filesystem::file_size(folder / "precious"), 4U);
}

TEST(FolderLock, SaysThatTheFolderIsMissing) {
  EXPECT_THAT(lock_refusal("/no/such/folder"),
              HasSubstr("/no/such/folder: cannot be locked: No such"));
}

}  // namespace
}  // namespace lockstep::testing
