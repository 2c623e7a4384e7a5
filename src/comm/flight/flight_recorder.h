#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/flight/diagnosis.h"
#include "comm/flight/flight_record.h"
#include "comm/flight/stack_file.h"
#include "comm/operation.h"
#include "core/system/crash_handler.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2 {
class Communicator;
}

namespace lockstep::inline v0_2::detail {

/// The name of the job that this process is a rank of. It is the name that `lockstep run` gives,
/// else a digest of what another launcher sets, else the pid of the launcher or of this process.
/// All ranks of a host, and with most launchers of all hosts, have the same.
std::string flight_job();

/// Keeps the last operations of one rank where other processes of the same user can read them. Note
/// [How operations are recorded] is in flight_recorder.cpp.
class FlightRecorder final : private CrashListener {
 public:
  struct Settings {
    std::string_view backend;
    int rank;  ///< in the world
    int size;  ///< of the world
  };
  /// Null if LOCKSTEP_FLIGHT_RECORDER is 0.
  static std::shared_ptr<FlightRecorder> create(const Settings& settings);
  /// The same for the rank of a world.
  static std::shared_ptr<FlightRecorder> create(const Communicator& world);

  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Adds a group by its members' world ranks, and returns its index. Members add groups of the
  /// same members in the same order.
  std::uint16_t add_group(std::span<const int> members);
  void remove_group(std::uint16_t group) noexcept;

  /// Records that an operation was issued, and returns its number. peer is a world rank.
  std::uint64_t issued(std::uint16_t group, const Operation& operation, int peer,
                       std::size_t bytes) noexcept {
    const auto number = file_->added.load(relaxed) + 1;
    file_->entries[number % FlightFile::capacity].write(
        number, {.issued_at = ticks(),
                 .ended_at = 0,
                 .sequence = operation.sequence,
                 .bytes = bytes,
                 .source = std::bit_cast<std::uint64_t>(operation.issue.source),
                 .peer = peer,
                 .group_index = group,
                 .collective = operation.collective,
                 .dtype = operation.wire_dtype()});
    if (!operation.is_message()) file_->groups[group].issued.store(operation.sequence, relaxed);
    file_->added.store(number, std::memory_order_release);
    return number;
  }
  /// Records that an operation is complete. Any thread.
  void ended(std::uint64_t number) noexcept {
    file_->entries[number % FlightFile::capacity].end(number, ticks());
  }

  /// Publishes that the rank waits for an operation. is_bound: nothing else ends the wait.
  void begin_wait(std::uint64_t number, bool is_bound) noexcept;
  void end_wait() noexcept;
  /// Records that the waiting rank polls.
  void poll_wait() noexcept { file_->seen.store(ticks(), relaxed); }
  /// Publishes the world ranks that the wait is for.
  void set_missing(std::span<const int> ranks) noexcept;

  /// Counts a training step.
  void count_step() noexcept {
    const auto number = file_->step.load(relaxed) + 1;
    file_->step_ended[number % FlightFile::step_times].store(ticks(), relaxed);
    file_->step.store(number, std::memory_order_release);
  }

  /// Records the failure of the world. Writes a copy and the stacks of this process to
  /// LOCKSTEP_TRACE, and asks the other ranks of this host for theirs. Only the first call has an
  /// effect.
  void fail(std::string_view text, int rank) noexcept;

  std::string_view job() const { return file_->job; }
  int rank() const { return file_->rank; }
  int size() const { return file_->size; }
  /// Time in one operation after which the rank warns; 0 for never.
  std::chrono::milliseconds stall_warning() const { return stall_warning_; }

  // By the records of the ranks of this world that are on this host:
  WaitOf waits() const { return recorded_waits(ranks_on_host()); }
  /// Logs what ranks have waited for at least so long, if this rank is the lowest that waits for a
  /// missing one.
  void warn_of_stall(std::chrono::duration<double> least) const;

 private:
  static constexpr auto relaxed = std::memory_order_relaxed;

  explicit FlightRecorder(const Settings& settings);
  std::vector<ObservedRank> ranks_on_host() const;
  void on_crash(const Crash& crash) noexcept override;
  void keep_copies(const std::filesystem::path& folder);
  /// Async-signal-safe. False if the failure of the world was recorded before.
  bool record_failure(std::string_view text, int rank, std::uint64_t at) noexcept;
  /// Async-signal-safe. Returns errno, 0 for success.
  int write_copy(bool has_ended) const noexcept;

  FlightFile* file_;
  std::filesystem::path path_;    ///< of the file in shared memory; empty if there is none
  std::filesystem::path copies_;  ///< folder of the copy after a failure; empty: none
  std::string copy_, part_;       ///< the copy, and its name before it is complete
  std::optional<StackFile> stacks_;
  std::chrono::milliseconds stall_warning_{};
  ForkGuard process_;
  std::map<std::vector<int>, int> groups_;  ///< number of groups of the same members
};

}  // namespace lockstep::detail
