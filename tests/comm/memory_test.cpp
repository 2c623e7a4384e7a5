#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <system_error>

#include "comm/host/host.h"
#include "tests/comm/failures.h"
#include "tests/comm/oracle.h"
#include "tests/matchers.h"

// The memory that ranks share, and the world it holds.

namespace lockstep::testing {
namespace {

using detail::concat;

TEST(Memory, ShortageIsAnErrorThatSaysHowMuch) {
  const auto world = host::World::create(1, 1 << 20);
  const auto group = host::create(world, 0, {});
  EXPECT_THAT([&] { group->allocate(2 << 20); },
              ThrowsMessage<CommError>(
                  AllOf(HasSubstr("cannot allocate 2097152 bytes"), HasSubstr("1048576"),
                        HasSubstr("limited by heap_bytes of the program: raise it"))));
  const auto big = host::create(host::World::create(1, std::size_t{1} << 44), 0, {});
  EXPECT_THAT([&] { big->allocate(std::size_t{1} << 43); },
              ThrowsMessage<CommError>(HasSubstr("available on this machine")));
  group->allocate(1 << 20);
}

TEST(Memory, IsReusedAndJoinedAgain) {
  const auto group = host::create(host::World::create(1, 1 << 20), 0, {});
  for (int round = 0; round < 100; ++round) {
    std::vector<std::shared_ptr<std::byte>> pieces;
    for (std::size_t bytes : {1u, 100u, 4096u, 65536u, 0u, 300000u}) {
      pieces.push_back(group->allocate(bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back().get()) % 64, 0u);
    }
    if (round % 2 == 0) std::reverse(pieces.begin(), pieces.end());
  }
  EXPECT_NE(group->allocate(1 << 20), nullptr);
}

TEST(Memory, DescriptorThatTheProgramHasClosedIsNamed) {
  const auto text = in_child([] {
    const auto world = host::World::create(1);
    const auto group = host::create(world, 0, {.timeout = std::chrono::seconds(1)});
    ::close(world->fd());
    const auto closed = message_of<CommError>([&] { group->allocate(1 << 20); });
    // A file of the program gets its number.
    const int file = ::memfd_create("of the program", 0);
    ::dup2(file, world->fd());
    const auto reused = message_of<CommError>([&] { group->allocate(1 << 20); });
    struct stat status {};
    ::fstat(file, &status);
    return concat(closed == reused ? closed : "two texts", "; bytes ", status.st_size);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("is no longer the world's memory: the program has closed it"),
                          HasSubstr("; bytes 0")));
}

TEST(Memory, LimitsOfTheProcessAreNamed) {
  const auto with_limit = [](int resource) {
    return in_child([&] {
      const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
      ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
      host::World::create(2);
      return std::string("no error");
    });
  };
  EXPECT_THAT(with_limit(RLIMIT_FSIZE), HasSubstr("file size (ulimit -f) 1048576 bytes"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_THAT(with_limit(RLIMIT_AS), HasSubstr("address space (ulimit -v) 1048576 bytes"));
#endif
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, HeapsAreNamedWhereTheyCannotBeMapped) {
  const auto text = in_child([] {
    const auto world = host::World::create(2, std::size_t{1} << 40);
    const rlimit limit{.rlim_cur = std::size_t{1} << 40, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    std::string texts;
    for (const int rank : {0, 1}) {  // rank 1 does not wait for rank 0
      texts += message_of<Error>([&] {
        host::create(world, rank, {.timeout = std::chrono::seconds(1), .map_heaps = rank == 0});
      });
    }
    return texts;
  });
  EXPECT_THAT(text,
              HasSubstr("MiB of address space for 2 heaps: Cannot allocate memory; each is "
                        "limited by heap_bytes of the program: raise it; this process uses "));
  EXPECT_THAT(text, HasSubstr("; raise ulimit -v"));
  EXPECT_THAT(text, HasSubstr("rank 0 left the world (by an exception)"));
}
#endif

/// Memory that all worlds of this process have taken. Units: bytes.
std::size_t taken_by_worlds() {
  std::map<std::uint64_t, std::size_t> worlds;  // bytes by inode
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const auto name = std::filesystem::read_symlink(entry.path(), closed).string();
    struct stat status {};
    if (name.find("memfd:lockstep-world") == name.npos ||
        ::stat(entry.path().c_str(), &status) != 0) {
      continue;
    }
    worlds[status.st_ino] = static_cast<std::size_t>(status.st_blocks) * 512;
  }
  std::size_t bytes = 0;
  for (const auto& [inode, taken] : worlds) bytes += taken;
  return bytes;
}

/// Runs fn on each rank of a world of threads, of which each has attached the world itself.
void run_attached(int size,
                  const std::function<void(const std::shared_ptr<Communicator>&,
                                           const std::shared_ptr<host::World>&)>& fn,
                  std::size_t heap_bytes = 0, bool map_heaps = true) {
  const auto world = host::World::create(size, heap_bytes);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank, own = host::World::attach(::dup(world->fd()), size)] {
      fn(host::create(own, rank, {.timeout = 20s, .map_heaps = map_heaps}), own);
    });
  }
  for (auto& rank : ranks) rank.join();
}

/// Expects the sum of an all_reduce of so many elements of such memory.
void expect_sum(Communicator& group, std::size_t count, Place place = Place::elsewhere) {
  const Buffer data(group, place, Bytes(count * sizeof(float)));
  auto* const values = reinterpret_cast<float*>(data.data());
  std::fill_n(values, count, static_cast<float>(group.rank() + 1));
  group.all_reduce(values, count, DType::f32, ReduceOp::sum).wait();
  const auto sum = static_cast<float>(group.size() * (group.size() + 1) / 2);
  EXPECT_EQ(std::count(values, values + count, sum), static_cast<std::ptrdiff_t>(count));
}

TEST(Memory, OfAGroupThatIsHeldIsTakenOnUse) {
  constexpr int groups = 10;
  constexpr std::size_t most = 64 << 10;  // for each rank
  for (const int size : {2, 3, 7}) {
    const auto others = taken_by_worlds();
    run_attached(size, [&](const auto& world, const auto&) {
      const auto ranks = static_cast<std::size_t>(size);
      // What the ranks have taken since `before`, measured while they wait.
      const auto taken_since = [&](std::size_t before) {
        world->barrier().wait();
        const auto taken = taken_by_worlds() - before;
        world->barrier().wait();
        return taken;
      };
      EXPECT_LE(taken_since(others), ranks * most);
      std::vector<int> all(ranks);
      std::iota(all.begin(), all.end(), 0);
      for (const bool split : {true, false}) {
        const auto before = taken_since(0);
        std::vector<std::shared_ptr<Communicator>> held;
        for (int i = 0; i < groups; ++i) {
          held.push_back(split ? world->split(0, 0) : world->new_group(all));
        }
        EXPECT_LE(taken_since(before), groups * ranks * most);
        for (const auto& group : held) {
          expect_sum(*group, 100);
          expect_sum(*group, 300'000);
        }
        EXPECT_GE(taken_since(before), groups * ranks * (std::size_t{1} << 20));
      }
    });
  }
}

TEST(Memory, OfAGroupMayHaveBeenUsedBefore) {
  const auto use = [](const auto& world, const auto&) {
    for (int round = 0; round < 4; ++round) {
      world->barrier().wait();  // both have left the group before
      {
        constexpr std::size_t bytes = 8 << 20;
        const auto memory = world->allocate(bytes);
        std::memset(memory.get(), 0xff, bytes);
      }
      const auto small = world->allocate(100 + 3000 * static_cast<std::size_t>(round));
      const auto group = world->split(0, 0);
      expect_sum(*group, 1000);
      expect_sum(*group, 100'000);
      EXPECT_NE(small, nullptr);
    }
  };
  run_attached(2, use);
  run_attached(2, use, 9 << 20);  // the group's block is where the memory was
}

TEST(Memory, ThatIsRefusedInACollectiveEndsTheWorld) {
  for (const std::size_t count : {10U, 100'000U}) {
    std::vector<std::string> texts(2);
    run_attached(2, [&](const auto& world, const auto& own) {
      // This descriptor is not that of the memory any more.
      const int none = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      if (world->rank() == 1) ::dup2(none, own->fd());
      ::close(none);
      std::vector<float> values(count);
      texts[static_cast<std::size_t>(world->rank())] = message_of<CommError>(
          [&] { world->all_reduce(values.data(), count, DType::f32, ReduceOp::sum).wait(); });
    });
    EXPECT_THAT(texts,
                Each(AllOf(StartsWith("all_reduce"), HasSubstr("of 2: rank 1: host: descriptor "),
                           HasSubstr("the program has closed it"))));
  }
}

/// The mappings of all worlds' memory in this process.
struct Mappings {
  std::size_t bytes = 0;
  std::vector<std::string> flags;  ///< of each
};
Mappings mappings_of_worlds() {
  Mappings found;
  std::ifstream in("/proc/self/smaps");
  bool of_world = false;
  for (std::string line; std::getline(in, line);) {
    // Only a mapping's first line has a range of addresses.
    if (const auto dash = line.find('-'); dash < line.find(' ')) {
      of_world = line.find("memfd:lockstep-world") != line.npos;
      if (!of_world) continue;
      found.bytes +=
          std::stoull(line.substr(dash + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
    }
    if (of_world && line.starts_with("VmFlags:")) found.flags.push_back(line + " ");
  }
  return found;
}

TEST(Memory, IsLeftOutOfCoreDumps) {
  run_attached(2, [](const auto& group, const auto&) {
    const auto memory = group->allocate(40 << 20);
    group->barrier().wait();
    EXPECT_THAT(mappings_of_worlds().flags, AllOf(SizeIs(Ge(2U)), Each(HasSubstr(" dd "))));
    group->barrier().wait();
  });
}

TEST(Memory, HeapsAreMappedOnFirstUse) {
  constexpr std::size_t heap = std::size_t{1} << 32;
  const auto before = mappings_of_worlds().bytes;
  const auto use = [&](const auto& group, const auto&) {
    expect_sum(*group, 100'000);
    group->barrier().wait();
    EXPECT_LT(mappings_of_worlds().bytes - before, heap / 100);
    group->barrier().wait();
    // Memory that the other rank reads in place, although it has none itself.
    expect_sum(*group, 100'000, group->rank() == 0 ? Place::group : Place::elsewhere);
    group->barrier().wait();
    EXPECT_GT(mappings_of_worlds().bytes - before, heap);
    group->barrier().wait();
  };
  run_attached(2, use, heap, false);
}

TEST(World, RefusesSizesAndRanksOutsideTheRangeAndARankThatHasJoined) {
  EXPECT_THROW(host::World::create(0), InvalidArgument);
  EXPECT_THROW(host::World::create(-1), InvalidArgument);
  EXPECT_THROW(host::World::create(host::max_ranks + 1), InvalidArgument);
  EXPECT_NO_THROW(host::World::create(host::max_ranks));
  const std::size_t asked = std::size_t{400} << 30;
  EXPECT_EQ(host::World::create(8, asked)->heap_bytes(), asked) << "of address space only";
  const auto world = host::World::create(1);
  const auto group = host::create(world, 0, {});
  EXPECT_THROW(host::create(world, 0, {}), InvalidArgument);
  EXPECT_THROW(host::create(world, 1, {}), InvalidArgument);
}

TEST(World, ForeignDescriptorsAreRefused) {
  EXPECT_THROW(host::World::attach(987, 2), CommError);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_THROW(host::World::attach(ends[0], 2), CommError);
  ::close(ends[1]);
  const int zeros = ::memfd_create("zeros", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(zeros, 1 << 20), 0);
  EXPECT_THROW(host::World::attach(zeros, 2), CommError);
  const auto world = host::World::create(2);
  EXPECT_THROW(host::World::attach(::dup(world->fd()), 3), CommError);
}

TEST(World, CannotBeCutOff) {
  const auto world = host::World::create(2);
  struct stat before {
  }, after{};
  ASSERT_EQ(::fstat(world->fd(), &before), 0);
  for (const off_t bytes : {off_t{0}, before.st_size - 1, before.st_size + 1}) {
    EXPECT_EQ(::ftruncate(world->fd(), bytes), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(::fcntl(world->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1) << "ranks join later";
  ASSERT_EQ(::fstat(world->fd(), &after), 0);
  EXPECT_EQ(after.st_size, before.st_size);
}

}  // namespace
}  // namespace lockstep::testing
