#include <optional>

#include "core/system/files.h"
#include "tests/in_child.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::FolderLock;

/// The error of taking the lock; "" for none.
std::string lock_refusal(const std::filesystem::path& folder, std::string_view purpose = "test") {
  return message_of<Error>([&] { const FolderLock lock(folder, purpose, "second"); });
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

// tests/launch shows by log folders which error another job gets, and that the lock of a killed job
// does not block the folder.
TEST(FolderLock, OfOnePurposeOutlivesAForkedChild) {
  const TemporaryFolder folder;
  std::optional<FolderLock> lock(std::in_place, folder.path(), "test", "parent");
  const auto of_child = in_child([&] {
    lock.reset();  // must not drop the parent's
    return lock_refusal(folder.path(), "other") + '|' + lock_refusal(folder.path());
  });
  EXPECT_THAT(of_child, AllOf(StartsWith("|"), HasSubstr("run parent")));
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
