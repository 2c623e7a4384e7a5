#include "comm/flight/flight_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "comm/operation.h"
#include "core/log.h"
#include "core/signal_safe_text.h"
#include "core/system/files.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

namespace fs = std::filesystem;

std::vector<int> ranks_of(const FlightRanks& set) {
  std::vector<int> ranks;
  for (std::size_t word = 0; word < set.size(); ++word) {
    for (auto bits = set[word].load(); bits != 0; bits &= bits - 1) {
      ranks.push_back(static_cast<int>(word * 64) + std::countr_zero(bits));
    }
  }
  return ranks;
}

/// Ends texts that may come from another process.
void terminate(auto&... texts) { ((texts[sizeof texts - 1] = '\0'), ...); }

bool is_known(Collective collective) { return collective <= Collective::reduce; }

bool is_valid(const FlightFile& file) {
  return file.magic.load() == FlightFile::expected_magic &&
         file.version == FlightFile::expected_version && file.size >= 1 && file.rank >= 0 &&
         file.rank < file.size;
}

/// Copies the operations of a record that its rank may write at this moment. read() of a file may
/// return the number of one operation and the fields of another; an entry that changes while it is
/// copied is left out.
void copy_live_entries(const Descriptor& in, FlightFile& copy) {
  void* const memory = ::mmap(nullptr, sizeof(FlightFile), PROT_READ, MAP_SHARED, in.get(), 0);
  if (memory == MAP_FAILED) return;
  const auto& live = *static_cast<const FlightFile*>(memory);
  copy.added.store(live.added.load(std::memory_order_acquire), std::memory_order_relaxed);
  for (std::size_t i = 0; i < FlightFile::capacity; ++i) {
    const auto number = live.entries[i].number();
    const auto operation = live.entries[i].read(number);
    copy.entries[i].write(operation ? number : 0, operation.value_or(FlightOperation{}));
  }
  ::munmap(memory, sizeof(FlightFile));
}

}  // namespace

std::string FlightOperation::label() const {
  return Operation{.collective = collective, .peer = peer, .sequence = sequence}.label();
}

std::shared_ptr<const FlightRecord> FlightRecord::read(const fs::path& path) {
  // A fifo would wait for its writer; a link could name any file.
  const Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!in || ::fstat(in.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size != static_cast<off_t>(sizeof(FlightFile))) {
    return nullptr;
  }
  auto file = std::make_unique<FlightFile>();
  const auto got = ::pread(in.get(), static_cast<void*>(file.get()), sizeof(FlightFile), 0);
  if (got != static_cast<ssize_t>(sizeof(FlightFile)) || !is_valid(*file)) return nullptr;
  if (file->last.ticks == 0) copy_live_entries(in, *file);
  return std::make_shared<const FlightRecord>(std::move(file), path);
}

std::shared_ptr<const FlightRecord> FlightRecord::parse(std::string_view bytes) {
  if (bytes.size() != sizeof(FlightFile)) return nullptr;
  auto file = std::make_unique<FlightFile>();
  std::memcpy(static_cast<void*>(file.get()), bytes.data(), bytes.size());
  // The clock of a record that is no copy is that of its host.
  if (!is_valid(*file) || file->last.ticks == 0) return nullptr;
  return std::make_shared<const FlightRecord>(std::move(file), fs::path());
}

FlightRecord::FlightRecord(std::unique_ptr<FlightFile> file, fs::path path)
    : file_(std::move(file)),
      path_(std::move(path)),
      scale_(file_->begun, file_->last.ticks != 0 ? file_->last : TickTime::now()) {
  terminate(file_->process_start, file_->job, file_->host, file_->program, file_->backend,
            file_->failure);
  const bool is_copy = file_->last.ticks != 0;
  const auto now = is_copy ? file_->last.ticks : ticks();
  for (const auto& group : file_->groups) {
    if (group.key.load() == 0) continue;
    groups_.push_back({.key = group.key,
                       .earlier = group.earlier,
                       .size = group.size,
                       .issued = group.issued,
                       .members = ranks_of(group.members)});
    // All members of the world of many ranks.
    if (group.size == file_->size && file_->size <= most_flight_ranks) continue;
    if (static_cast<int>(groups_.back().members.size()) != group.size) {
      groups_.back().members.clear();
    }
  }
  const auto added = file_->added.load();
  const auto first = added > FlightFile::capacity ? added - FlightFile::capacity + 1 : 1;
  auto latest = std::max(file_->begun.ticks, file_->seen.load());
  for (auto number = first; number != added + 1; ++number) {
    const auto entry = file_->entries[number % FlightFile::capacity].read(number);
    if (!entry || entry->group_index >= FlightFile::most_groups || !is_known(entry->collective))
      continue;
    const auto issued = entry->issued_at, ended = entry->ended_at;
    latest = std::max({latest, issued, ended});
    const auto since_end = ended == 0 ? std::nullopt : std::optional(scale_.seconds(ended, now));
    entries_.push_back({*entry, number, file_->groups[entry->group_index].key,
                        scale_.seconds(issued, now), since_end, scale_.real(issued)});
  }
  silent_ = std::max(0.0, scale_.seconds(latest, now));
  // A rank that raises the failure while it still spins has published no wait.
  const bool waits = file_->wait.turn.load() % 2 != 0;
  if (is_copy && !waits && !failure().empty() && !entries_.empty() && !entries_.back().ended) {
    const auto& last = entries_.back();
    wait_ = Wait{.entry = last, .seconds = std::max(0.0, last.issued), .missing = {}};
  }
  if (!waits) return;
  const auto waited = std::ranges::find(entries_, file_->wait.entry.load(), &Entry::number);
  if (waited == entries_.end()) return;
  wait_ = Wait{.entry = *waited,
               .seconds = std::max(0.0, scale_.seconds(file_->wait.since, now)),
               .missing = ranks_of(file_->wait.missing),
               .is_bound = file_->wait.is_bound,
               .turn = file_->wait.turn};
}

std::optional<double> FlightRecord::last_step() const {
  if (step() == 0) return std::nullopt;
  return scale_.seconds(file_->begun.ticks, file_->step_ended[step() % FlightFile::step_times]);
}

const FlightRecord::Group* FlightRecord::group(std::uint64_t key) const {
  const auto found = std::ranges::find(groups_, key, &Group::key);
  return found == groups_.end() ? nullptr : &*found;
}

std::string FlightRecord::failure() const {
  return file_->failed.load() == 2 ? file_->failure : std::string();
}

std::int64_t FlightRecord::failed_real() const { return scale_.real(file_->failed_at); }

bool FlightRecord::has_seen_stopped(int rank) const {
  if (rank < 0 || rank >= most_flight_ranks) return false;
  const auto word = file_->stopped[static_cast<std::size_t>(rank) / 64].load();
  return (word >> (static_cast<unsigned>(rank) % 64) & 1) != 0;
}

std::string flight_prefix() { return concat("lockstep-", ::geteuid(), "-"); }

std::string flight_file_name(int rank) { return concat("rank-", rank, ".flight"); }

namespace {

/// Whether `lockstep run`, which copies the record, still runs.
bool is_supervised(const FlightFile& file) { return read_process(file.parent).name == "lockstep"; }

/// Calls fn with the path of every record of this user. The content of another user's file would
/// choose which processes get a signal that asks for their stacks.
void for_each_path(const auto& fn) {
  const auto prefix = flight_prefix();
  std::error_code none;
  for (fs::directory_iterator entry(flight_folder, none), end; !none && entry != end;
       entry.increment(none)) {
    const auto name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(".flight")) continue;
    struct stat status {};
    if (::lstat(entry->path().c_str(), &status) == 0 && status.st_uid == ::geteuid()) {
      fn(entry->path());
    }
  }
}

/// Writes the record of an ended rank to the folder, and creates the folder.
/// Throws: Error if it cannot be written.
void copy_flight_record(const FlightFile& file, const fs::path& folder) {
  std::error_code exists;
  fs::create_directories(folder, exists);
  const auto path = folder / flight_file_name(file.rank);
  const auto part = concat(path.string(), '.', ::getpid());
  const int error = write_flight_copy(file, true, path.c_str(), part.c_str());
  if (error == 0) return;
  throw Error(
      concat("flight recorder: cannot write ", path.string(), ": ", why_not_opened(part, error)));
}

}  // namespace

std::vector<std::shared_ptr<const FlightRecord>> read_flight_records(std::string_view job) {
  std::vector<std::shared_ptr<const FlightRecord>> records;
  for_each_path([&](const fs::path& path) {
    auto record = FlightRecord::read(path);
    if (record != nullptr && (job.empty() || record->job() == job)) records.push_back(record);
  });
  std::ranges::sort(records, [](const auto& one, const auto& other) {
    return std::pair(one->job(), one->rank()) < std::pair(other->job(), other->rank());
  });
  return records;
}

int write_flight_copy(const FlightFile& file, bool has_ended, const char* path,
                      const char* part) noexcept {
  return replace_file(path, part, [&](int out) {
    const auto patch = [out](const auto& value, std::size_t at) {
      return ::pwrite(out, &value, sizeof value, static_cast<off_t>(at)) ==
             static_cast<ssize_t>(sizeof value);
    };
    return write_all(out, &file, sizeof file) &&
           patch(TickTime::now(), offsetof(FlightFile, last)) &&
           patch(has_ended, offsetof(FlightFile, was_ended));
  });
}

std::vector<std::string> copies_of_flight_records(std::string_view job) {
  std::vector<std::string> copies;
  for (const auto& record : read_flight_records(job)) {
    const auto copy = std::make_unique<FlightFile>();
    std::memcpy(static_cast<void*>(copy.get()), &record->file(), sizeof *copy);
    copy->was_ended = has_ended(*copy);
    copy->was_stopped = !copy->was_ended && read_process(copy->pid).stopped();
    copy->resident_bytes = copy->was_ended ? -1 : resident_bytes(copy->pid);
    copy->last = TickTime::now();
    copies.emplace_back(reinterpret_cast<const char*>(copy.get()), sizeof *copy);
  }
  return copies;
}

bool has_ended(const FlightFile& file) {
  if (file.pid_namespace == 0 || file.pid_namespace != pid_namespace()) return false;
  const auto process = read_process(file.pid);
  return !process.exists() || process.state == 'Z' || process.state == 'X' ||
         process.start != file.process_start;
}

void remove_ended_flight_records(std::string_view job, const fs::path& folder) noexcept {
  try {
    const auto records = read_flight_records();
    std::set<std::string_view> running;
    for (const auto& record : records) {
      if (!has_ended(record->file())) running.insert(record->job());
    }
    for (const auto& record : records) {
      const bool of_job = record->job() == job;
      const auto& file = record->file();
      if (!has_ended(file)) continue;
      if (!of_job && (running.contains(record->job()) || is_supervised(file))) continue;
      std::error_code failed;
      // A rank that noticed the failure has written its own copy.
      if (of_job && !folder.empty() && !fs::exists(folder / flight_file_name(record->rank()))) {
        copy_flight_record(record->file(), folder);
      }
      fs::remove(record->path(), failed);
    }
  } catch (const std::exception& error) {
    log::warn(error.what());
  }
}

void remove_flight_records_of(std::span<const pid_t> processes) noexcept {
  try {
    for_each_path([&](const fs::path& path) {
      const auto name = path.filename().string();
      const bool chosen = std::ranges::any_of(processes, [&](pid_t process) {
        return name.starts_with(concat(flight_prefix(), process, '-'));
      });
      std::error_code gone;
      if (chosen) fs::remove(path, gone);
    });
  } catch (const std::exception&) {
    // Out of memory: `lockstep status` removes them.
  }
}

}  // namespace lockstep::detail
