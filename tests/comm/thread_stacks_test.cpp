#include "core/system/thread_stacks.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/flight/stack_file.h"
#include "core/system/process.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using detail::ProcessStacks;

ProcessStacks stacks_of_this_process(const std::filesystem::path& path) {
  const detail::Descriptor out(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  EXPECT_TRUE(detail::write_thread_stacks(out.get(), nullptr));
  return ProcessStacks::read(path);
}

const ProcessStacks::Thread* find(const ProcessStacks& stacks, long id) {
  const auto found = std::ranges::find(stacks.threads, id, &ProcessStacks::Thread::id);
  return found == stacks.threads.end() ? nullptr : &*found;
}

/// A thread that sleeps until the test has ended.
class Sleeper {
 public:
  explicit Sleeper(bool blocks_signals)
      : thread_([this, blocks_signals] {
          sigset_t all;
          ::sigfillset(&all);
          if (blocks_signals) ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
          id_ = ::gettid();
          while (!over_) ::usleep(1000);
        }) {
    while (id_ == 0) std::this_thread::yield();
  }
  ~Sleeper() {
    over_ = true;
    thread_.join();
  }
  long id() const { return id_; }

 private:
  std::atomic<bool> over_{false};
  std::atomic<long> id_{0};
  std::thread thread_;
};

TEST(ThreadStacks, HoldEveryThread) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer delays signals of a thread that sleeps";
#endif
  ASSERT_TRUE(detail::prepare_thread_stacks([](const ucontext_t*) {}));
  const TemporaryFolder folder;
  const Sleeper asleep(false);
  // On a busy machine, a thread may answer too late.
  bool has_answered = false;
  for (int turn = 0; turn < 50 && !has_answered; ++turn) {
    const auto stacks = stacks_of_this_process(folder / "stacks");
    const auto* own = find(stacks, ::gettid());
    ASSERT_NE(own, nullptr);
    EXPECT_TRUE(own->has_answered);
    ASSERT_THAT(own->frames, Not(IsEmpty()));
    EXPECT_FALSE(own->frames.front().file.empty());
    const auto* other = find(stacks, asleep.id());
    ASSERT_NE(other, nullptr);
    has_answered = other->has_answered;
    EXPECT_EQ(other->frames.empty(), !has_answered);
  }
  EXPECT_TRUE(has_answered);
}

TEST(ThreadStacks, NameAThreadThatDoesNotAnswer) {
  ASSERT_TRUE(detail::prepare_thread_stacks([](const ucontext_t*) {}));
  const TemporaryFolder folder;
  const Sleeper deaf(true);
  const auto begin = std::chrono::steady_clock::now();
  const auto stacks = stacks_of_this_process(folder / "stacks");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  const auto* other = find(stacks, deaf.id());
  ASSERT_NE(other, nullptr);
  EXPECT_FALSE(other->has_answered);
  EXPECT_THAT(other->frames, IsEmpty());
}

TEST(StackFile, IsWrittenOnce) {
  const TemporaryFolder folder;
  const detail::StackFile file(folder.path(), 3);
  detail::StackFile::write(nullptr);
  const auto path = folder / detail::stack_file_name(3);
  const auto stacks = ProcessStacks::read(path);
  EXPECT_EQ(stacks.process, ::getpid());
  EXPECT_THAT(stacks.threads, Not(IsEmpty()));
  std::filesystem::remove(path);
  detail::StackFile::write(nullptr);
  EXPECT_FALSE(std::filesystem::exists(path));
}

/// A thread that crashes waits so, for the process ends after it.
TEST(StackFile, IsCompleteWhenAnotherThreadHasWaited) {
  const TemporaryFolder folder;
  const detail::StackFile file(folder.path(), 3);
  const Sleeper deaf(true);  // the writer waits for its answer
  std::thread writer([] { detail::StackFile::write(nullptr); });
  while (std::filesystem::is_empty(folder.path())) std::this_thread::yield();
  detail::StackFile::await_other_writer();
  EXPECT_TRUE(std::filesystem::exists(folder / detail::stack_file_name(3)));
  writer.join();
  detail::StackFile::await_other_writer();
}

/// Addresses in memory become those of the file's symbol table, of callers within the call.
TEST(StackFile, HasAddressesOfFiles) {
  const TemporaryFolder folder;
  const auto module = folder / "program";
  for (const auto& [type, base] : {std::pair(ET_EXEC, 0x400000U), std::pair(ET_DYN, 0U)}) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_type = static_cast<Elf64_Half>(type);
    std::ofstream(module, std::ios::binary)
        .write(reinterpret_cast<const char*>(&header), sizeof header);
    std::ofstream(folder / "stacks")
        << "process 1\nthread 2 S a name\n0x401010\n0x401020\n0x7f0000000000\nmaps\n"
        << "00400000-00401000 r--p 00000000 08:01 3    " << module.string() << '\n'
        << "00401000-00402000 r-xp 00001000 08:01 3    " << module.string() << '\n'
        << "7fff00000000-7fff00001000 r-xp 00000000 00:00 0    [vdso]\n";
    const auto stacks = ProcessStacks::read(folder / "stacks");
    ASSERT_THAT(stacks.threads, SizeIs(1));
    const auto& frames = stacks.threads.front().frames;
    ASSERT_THAT(frames, SizeIs(3));
    EXPECT_EQ(frames[0].address, base + 0x1010);
    EXPECT_EQ(frames[0].file, module);
    EXPECT_EQ(frames[1].address, base + 0x101f);
    EXPECT_EQ(frames[2].file, "") << "code in no file";
  }
}

TEST(StackFile, OfAnotherKindIsEmpty) {
  EXPECT_THAT(ProcessStacks::read("/bin/sh").threads, SizeIs(0));
  EXPECT_EQ(ProcessStacks::read("/nowhere").process, 0);
}

}  // namespace
}  // namespace lockstep::testing
