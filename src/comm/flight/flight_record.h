#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/flight/flight_entry.h"
#include "core/system/ticks.h"
#include "lockstep/types.h"

// The layout of a flight record, the file in which one rank keeps its last operations. A
// FlightRecorder writes it, other processes read copies of it. It has numbers and texts only, never
// addresses.

namespace lockstep::inline v0_2::detail {

/// A set of world ranks below most_flight_ranks, as bits. Higher ranks are left out.
inline constexpr int most_flight_ranks = 1024;
using FlightRanks = std::array<std::atomic<std::uint64_t>, most_flight_ranks / 64>;

using FlightEntry = BasicFlightEntry<StdAtomics>;
static_assert(sizeof(FlightEntry) == 64);

/// One group of the rank.
struct FlightGroup {
  /// Identifies the group on all its members: a digest of the members, and how many groups of the
  /// same members were created before. 0: the entry is free.
  std::atomic<std::uint64_t> key;
  std::atomic<std::uint64_t> issued;  ///< sequence number of the last collective
  std::atomic<std::int32_t> earlier;  ///< groups of the same members that were created before
  std::atomic<std::int32_t> size;
  FlightRanks members;
};

/// The wait that the rank is in. The fields are valid while turn is odd.
struct FlightWait {
  std::atomic<std::uint64_t> turn;   ///< incremented when a wait begins and when it ends
  std::atomic<std::uint64_t> entry;  ///< FlightEntry::number of the operation
  std::atomic<std::uint64_t> since;  ///< ticks
  std::atomic<bool> is_bound;        ///< only this operation ends it
  /// Ranks that the backend found missing, after 0.1 s. Empty before.
  FlightRanks missing;
};

struct FlightFile {
  static constexpr std::uint64_t expected_magic = 0x74686769'6c66736c;  // "lsflight"
  static constexpr std::uint32_t expected_version = 4;
  static constexpr std::size_t capacity = 256;    ///< operations that are kept
  static constexpr std::size_t most_groups = 64;  ///< operations of further groups share the last
  static constexpr std::size_t step_times = 8;    ///< steps whose end is kept

  std::atomic<std::uint64_t> magic;  ///< written last
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::int32_t parent;  ///< pid of the process that started it
  std::uint64_t pid_namespace;
  char process_start[24];  ///< Process::start
  char job[64];
  char host[64];
  char program[32];
  char backend[16];
  TickTime begun;               ///< when the rank joined
  TickTime last;                ///< when the record was copied to a folder; 0 in shared memory
  bool was_ended;               ///< the process had ended when the record was copied
  bool was_stopped;             ///< it was stopped by SIGSTOP or a debugger at that time
  std::int64_t resident_bytes;  ///< memory of the process at that time; -1 unknown

  alignas(64) std::atomic<std::uint64_t> added;  ///< number of operations
  std::atomic<std::uint64_t> step;               ///< training steps; 0 if the program counts none
  std::atomic<std::uint64_t> seen;               ///< ticks at which a long wait polled last
  /// Ticks at the end of step number n, in entry n % step_times.
  std::atomic<std::uint64_t> step_ended[step_times];

  alignas(64) std::atomic<std::uint32_t> failed;  ///< 0 no, 1 being written, 2 readable
  std::atomic<std::int32_t> failed_rank;          ///< world rank at fault; -1 unknown
  std::atomic<std::uint64_t> failed_at;           ///< ticks
  FlightRanks stopped;  ///< ranks of this host that were stopped at that time
  char failure[1024];

  FlightWait wait;
  FlightGroup groups[most_groups];
  FlightEntry entries[capacity];
};

/// A copy of a flight record, which nothing changes any more.
class FlightRecord {
 public:
  /// An operation in a record.
  struct Entry : FlightOperation {
    std::uint64_t number;
    std::uint64_t group;          ///< FlightGroup::key
    double issued;                ///< seconds before the copy
    std::optional<double> ended;  ///< the same; empty while it is not complete
    std::int64_t issued_real;     ///< ns since 1970
  };
  struct Group {
    std::uint64_t key;
    int earlier;
    int size;
    std::uint64_t issued;
    std::vector<int> members;  ///< empty if they are not known
  };
  struct Wait {
    Entry entry;
    double seconds;
    std::vector<int> missing;
    bool is_bound = false;   ///< only this operation ends it
    std::uint64_t turn = 0;  ///< identifies the wait; every wait of a rank has another turn
  };

  /// The record in a file; null if it is none of this version.
  static std::shared_ptr<const FlightRecord> read(const std::filesystem::path& path);
  /// The record in the bytes of a FlightFile; null if it is none of this version.
  static std::shared_ptr<const FlightRecord> parse(std::string_view bytes);

  FlightRecord(std::unique_ptr<FlightFile> file, std::filesystem::path path);

  const FlightFile& file() const { return *file_; }
  const std::filesystem::path& path() const { return path_; }
  int rank() const { return file_->rank; }
  int size() const { return file_->size; }
  std::string_view job() const { return file_->job; }
  std::string_view host() const { return file_->host; }
  std::uint64_t step() const { return file_->step; }
  /// Seconds from the rank's join to the end of its last step; empty before the first.
  std::optional<double> last_step() const;

  /// The operations in the order in which they were issued.
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Group>& groups() const { return groups_; }
  const Group* group(std::uint64_t key) const;
  /// The wait that the rank was in.
  const std::optional<Wait>& wait() const { return wait_; }
  /// Seconds since the rank was last seen in a call of this library.
  double silent() const { return silent_; }
  /// The failure that the rank raised; empty for none.
  std::string failure() const;
  std::int64_t failed_real() const;  ///< ns since 1970
  /// Whether the other rank was stopped, by SIGSTOP or a debugger, when this rank raised the
  /// failure.
  bool has_seen_stopped(int rank) const;

 private:
  std::unique_ptr<FlightFile> file_;
  std::filesystem::path path_;
  TickScale scale_;
  std::vector<Entry> entries_;
  std::vector<Group> groups_;
  std::optional<Wait> wait_;
  double silent_ = 0;
};

/// The folder in which ranks keep their records while they run.
inline constexpr const char* flight_folder = "/dev/shm";
/// The beginning of the names of this user's records there.
std::string flight_prefix();

/// The records of this user's ranks on this host. An empty job: of all jobs.
std::vector<std::shared_ptr<const FlightRecord>> read_flight_records(std::string_view job = {});

/// Whether the process that wrote the record has ended. False if it is of another pid namespace.
bool has_ended(const FlightFile& file);

/// Removes the records of this job's processes that have ended, and those of other jobs without any
/// process that runs, the launcher included. Before that, copies those of this job to the folder,
/// if it is not empty, as rank-0.flight, …; a rank's own copy is kept.
void remove_ended_flight_records(std::string_view job = {},
                                 const std::filesystem::path& folder = {}) noexcept;

/// Removes the records of these processes of this user, which are about to end.
void remove_flight_records_of(std::span<const pid_t> processes) noexcept;

/// Writes a copy of the record to a file, which replaces an earlier one. has_ended: whether the
/// copy says that the process has ended. `part` is the name of the file before it is complete.
/// Returns errno, 0 if the copy is written. Async-signal-safe.
int write_flight_copy(const FlightFile& file, bool has_ended, const char* path,
                      const char* part) noexcept;

/// The bytes of copies of the job's records on this host, for readers on other hosts.
std::vector<std::string> copies_of_flight_records(std::string_view job);

/// The name of rank's copy in a folder: "rank-0.flight".
std::string flight_file_name(int rank);

}  // namespace lockstep::detail
