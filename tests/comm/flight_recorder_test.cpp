#include "comm/flight/flight_recorder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <latch>
#include <thread>

#include "comm/flight/diagnosis.h"
#include "comm/flight/flight_record.h"
#include "core/text.h"
#include "tests/matchers.h"
#include "tests/ranks.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using detail::FlightFile;
using detail::FlightRecord;
using detail::FlightRecorder;

auto recorder_of_size(int size, int rank = 0) {
  return FlightRecorder::create({.backend = "test", .rank = rank, .size = size});
}

constexpr std::array two_ranks{0, 1};

Operation barrier(std::uint64_t sequence) {
  return {.collective = Collective::barrier, .sequence = sequence};
}

/// The record of this process's recorder of the given world size.
std::shared_ptr<const FlightRecord> record_of_size(int size) {
  for (auto& record : detail::read_flight_records()) {
    if (record->file().pid == ::getpid() && record->size() == size) return record;
  }
  return nullptr;
}

TEST(FlightRecorder, KeepsTheLastOperations) {
  const auto recorder = recorder_of_size(901, 3);
  const auto group = recorder->add_group(std::array{3, 5});
  constexpr std::uint64_t count = FlightFile::capacity + 44;
  for (std::uint64_t i = 1; i <= count; ++i) {
    const auto number = recorder->issued(group, barrier(i), -1, 8);
    EXPECT_EQ(number, i);
    if (i < count) recorder->ended(number);
  }
  recorder->ended(1);  // its entry belongs to a later operation
  const auto record = record_of_size(901);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->rank(), 3);
  ASSERT_EQ(record->entries().size(), FlightFile::capacity);
  EXPECT_EQ(record->entries().front().sequence, count - FlightFile::capacity + 1);
  EXPECT_EQ(record->entries().back().sequence, count);
  EXPECT_FALSE(record->entries().back().ended);
  for (std::size_t i = 0; i + 1 < FlightFile::capacity; ++i) {
    const auto& entry = record->entries()[i];
    ASSERT_TRUE(entry.ended) << entry.number;
    EXPECT_LE(*entry.ended, entry.issued);
    EXPECT_GE(entry.issued, record->entries()[i + 1].issued);
  }
  const auto* known = record->group(record->entries().back().group);
  ASSERT_NE(known, nullptr);
  EXPECT_THAT(known->members, ElementsAre(3, 5));
  EXPECT_EQ(known->issued, count);
}

TEST(FlightRecorder, KeepsTheTimesOfStepsAndTheFirstFailure) {
  const auto recorder = recorder_of_size(908);
  EXPECT_FALSE(record_of_size(908)->last_step());
  double last = 0;
  for (std::uint64_t step = 1; step <= FlightFile::step_times + 3; ++step) {
    recorder->count_step();
    const auto record = record_of_size(908);
    EXPECT_EQ(record->step(), step);
    ASSERT_TRUE(record->last_step());
    EXPECT_GE(*record->last_step(), last);
    last = *record->last_step();
  }
  EXPECT_GT(last, 0);
  recorder->fail("the first", 7);
  recorder->fail("the second", 8);
  EXPECT_EQ(record_of_size(908)->failure(), "the first");
  EXPECT_EQ(record_of_size(908)->file().failed_rank.load(), 7);
}

TEST(FlightRecorder, ALateCompletionDoesNotEndALaterOperation) {
  detail::FlightEntry entry{};
  const detail::FlightOperation operation{};
  entry.write(1, operation);
  entry.write(257, operation);
  entry.end(1, 30);
  EXPECT_EQ(entry.read(257).value().ended_at, 0U);
  entry.end(257, 40);
  EXPECT_EQ(entry.read(257).value().ended_at, 40U);
}

/// A reader copies the file while the rank overwrites it.
TEST(FlightRecorder, EntriesAreConsistentWhileTheyAreWritten) {
  const auto recorder = recorder_of_size(907);
  const auto group = recorder->add_group(std::array{0});
  const auto path = record_of_size(907)->path();
  std::latch begun(1);
  const std::jthread writer([&](const std::stop_token& over) {
    for (std::uint64_t i = 1; !over.stop_requested(); ++i) {
      recorder->issued(group, barrier(i), -1, i);
      if (i == 1) begun.count_down();
    }
  });
  begun.wait();
  int read = 0;
  int torn = 0;
  for (int turn = 0; turn < 200; ++turn) {
    const auto record = FlightRecord::read(path);
    for (const auto& entry : record->entries()) {
      ++read;
      torn += entry.number != entry.sequence || entry.number != entry.bytes ? 1 : 0;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_EQ(torn, 0) << "of " << read;
}

/// A path in flight_folder of a recorder that this process makes later.
std::filesystem::path next_path(int recorders) {
  const auto recorder = recorder_of_size(907);
  const auto name = record_of_size(907)->path().filename().string();
  const auto dash = name.rfind('-');
  return std::filesystem::path(detail::flight_folder) /
         detail::concat(name.substr(0, dash + 1), std::stoi(name.substr(dash + 1)) + recorders,
                        ".flight");
}

TEST(FlightRecorder, SaysThatItsNameIsTaken) {
  const auto path = next_path(1);
  std::ofstream(path) << "in the way";
  ::testing::internal::CaptureStderr();
  const auto recorder = recorder_of_size(908, 3);
  const auto text = ::testing::internal::GetCapturedStderr();
  std::filesystem::remove(path);
  EXPECT_THAT(text, HasSubstr(detail::concat("lockstep: flight recorder: rank 3 cannot create ",
                                             path.string(), ": File exists; `lockstep status` ")));
  EXPECT_EQ(record_of_size(908), nullptr);
}

/// A record that another user wrote would choose which process gets a signal.
TEST(FlightRecords, OfAnotherUserAreNoneOfThisUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t nobody = 65534;
  const auto recorder = recorder_of_size(909);
  const auto path = record_of_size(909)->path();
  ASSERT_EQ(::chown(path.c_str(), nobody, nobody), 0);
  EXPECT_EQ(record_of_size(909), nullptr);
  ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
}

TEST(FlightRecorder, BelongsToTheProcessThatMadeIt) {
  auto recorder = recorder_of_size(903);
  const auto group = recorder->add_group(two_ranks);
  const pid_t child = ::fork();
  if (child == 0) {
    recorder->remove_group(group);
    recorder->fail("a failure of the child", 0);
    recorder.reset();
    std::exit(0);  // runs the handlers of atexit()
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const auto record = record_of_size(903);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->groups().size(), 1U);
  EXPECT_EQ(record->failure(), "");
}

TEST(FlightRecorder, NamesGroupsOfTheSameMembers) {
  const auto recorder = recorder_of_size(904);
  const auto first = recorder->add_group(two_ranks);
  const auto second = recorder->add_group(two_ranks);
  recorder->issued(first, barrier(1), -1, 0);
  recorder->issued(second, barrier(2), -1, 0);
  recorder->remove_group(first);
  const auto third = recorder->add_group(two_ranks);
  recorder->issued(third, barrier(3), -1, 0);
  const auto record = record_of_size(904);
  const auto& entries = record->entries();
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(detail::operation_text(*record, entries[1]), "barrier #2 of group 2 of ranks 0, 1");
  EXPECT_EQ(detail::operation_text(*record, entries[2]), "barrier #3 of group 3 of ranks 0, 1");
}

TEST(FlightRecord, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  const auto write = [&](std::size_t bytes, char value) {
    std::ofstream(folder / "file", std::ios::binary) << std::string(bytes, value) << std::flush;
    return FlightRecord::read(folder / "file");
  };
  EXPECT_EQ(FlightRecord::read(folder / "absent"), nullptr);
  EXPECT_EQ(write(0, 'x'), nullptr);
  EXPECT_EQ(write(sizeof(FlightFile), '\0'), nullptr);
  EXPECT_EQ(write(sizeof(FlightFile), '\xff'), nullptr);
  EXPECT_EQ(FlightRecord::read(folder.path()), nullptr);
}

/// Every byte of a record may be wrong: its reader must not crash.
TEST(FlightRecord, OfRandomBytesIsRead) {
  const TemporaryFolder folder;
  const auto recorder = recorder_of_size(906);
  recorder->issued(recorder->add_group(two_ranks), barrier(1), -1, 0);
  const auto good = content(record_of_size(906)->path());
  ASSERT_EQ(good.size(), sizeof(FlightFile));
  std::uint64_t state = 1;
  for (int turn = 0; turn < 50; ++turn) {
    auto bytes = good;
    for (std::size_t i = 24; i < bytes.size(); ++i) {  // after magic, version, rank and size
      state = state * 6364136223846793005U + 1442695040888963407U;
      bytes[i] = turn == 0 ? '\xff' : static_cast<char>(state >> 56);
    }
    std::ofstream(folder / "file", std::ios::binary) << bytes << std::flush;
    const auto record = FlightRecord::read(folder / "file");
    ASSERT_NE(record, nullptr);
    const auto found = detail::diagnose({{.record = record}}, 0);
    for (const auto& entry : record->entries()) detail::operation_text(*record, entry);
  }
}

TEST(FlightRecord, HasTheOperationsOfARank) {
  run_ranks(2, [](const auto& world) {
    std::array<float, 4> values{};
    const auto group = world->split(0, 0);
    world->all_reduce(values.data(), 4, DType::f32, ReduceOp::sum).wait();
    group->broadcast(values.data(), 2, DType::f32, 1).wait();
    world->barrier().wait();
    for (const auto& record : detail::read_flight_records()) {
      if (record->file().pid != ::getpid() || record->rank() != world->rank()) continue;
      if (record->size() != 2) continue;
      const auto& entries = record->entries();
      ASSERT_GE(entries.size(), 3U);
      const auto& reduce = entries[entries.size() - 3];
      EXPECT_EQ(detail::operation_text(*record, reduce), "all_reduce #3 of the world");
      EXPECT_EQ(reduce.bytes, 16U);
      EXPECT_TRUE(reduce.ended);
      const auto& broadcast = entries[entries.size() - 2];
      EXPECT_EQ(detail::operation_text(*record, broadcast),
                "broadcast #1 of group 2 of ranks 0, 1");
      EXPECT_EQ(broadcast.peer, 1);
    }
    world->barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing
