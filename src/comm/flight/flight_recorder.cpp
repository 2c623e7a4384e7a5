#include "comm/flight/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>

#include "comm/communicator.h"
#include "core/environment.h"
#include "core/launcher.h"
#include "core/log.h"
#include "core/numeric/digest.h"
#include "core/signal_safe_text.h"
#include "core/system/crash_handler.h"
#include "core/system/files.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How operations are recorded]
// Communicator::issue() records an operation of the rank's outermost context after it has begun, so
// that other ranks do not wait for the record. The BackendRequest records that it is complete.
// Stages in other contexts are not recorded. A record costs two readings of the processor's counter
// and about a dozen stores; there is no lock, no allocation and no system call. The file lies in
// /dev/shm with mode 0600, so that other processes of the user read it while the rank computes, is
// stopped, or has been killed. If it cannot be created, the record lies in private memory, and only
// the copy after a failure exists. The recorder removes the file at the end of the rank. A killed
// rank leaves it; the launcher and `lockstep status` remove the files of processes that have ended.

namespace lockstep::inline v0_2::detail {
namespace {

namespace fs = std::filesystem;

std::uint64_t digest_of(std::string_view text) { return digest(std::as_bytes(std::span(text))); }

void set_ranks(FlightRanks& set, std::span<const int> ranks) noexcept {
  std::array<std::uint64_t, std::tuple_size_v<FlightRanks>> words{};
  for (const int rank : ranks) {
    if (rank < 0 || rank >= most_flight_ranks) continue;
    const auto bit = static_cast<unsigned>(rank);
    words[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    set[i].store(words[i], std::memory_order_relaxed);
  }
}

void* map(int fd) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
  return ::mmap(nullptr, sizeof(FlightFile), PROT_READ | PROT_WRITE, flags, fd, 0);
}

/// The memory of a new file without a name, or null with errno set. Its pages are allocated,
/// because a full file system would otherwise end the process by SIGBUS later.
void* map_new_file(const Descriptor& file) {
  if (!file) return nullptr;
  errno = ::posix_fallocate(file.get(), 0, sizeof(FlightFile));
  if (errno != 0) return nullptr;
  void* const memory = map(file.get());
  return memory == MAP_FAILED ? nullptr : memory;
}

/// Gives the file its name. A file gets it when its record is complete, so a process that is killed
/// before leaves nothing.
bool name_file(const Descriptor& file, const fs::path& path) {
  const auto link = concat("/proc/self/fd/", file.get());
  return ::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

/// The files of this process, which are removed at its end: exit() destroys no objects on the stack
/// of main(). Never destroyed.
struct Files {
  std::mutex mutex;
  std::vector<fs::path> paths;
  ForkGuard process;

  static Files& get() {
    static auto* files = [] {
      std::atexit([] {
        if (!get().process.in_child()) get().remove_all();
      });
      return new Files;
    }();
    return *files;
  }
  void remove_all() {
    const std::lock_guard lock(mutex);
    for (const auto& path : paths) ::unlink(path.c_str());
  }
};

}  // namespace

std::string flight_job() {
  const auto& environment = Environment::get();
  if (!environment.run_id.empty()) return environment.run_id;
  const auto& launcher = environment.launcher;
  if (launcher && launcher->size > 1) {
    if (!launcher->job.empty()) return hex(digest_of(launcher->job) >> 32);
    if (const auto pid = launcher->process(); pid > 0) return concat(pid);
  }
  return concat(::getpid());
}

std::shared_ptr<FlightRecorder> FlightRecorder::create(const Settings& settings) {
  const auto& environment = Environment::get();
  if (!environment.flight_recorder) return nullptr;
  std::shared_ptr<FlightRecorder> recorder(new FlightRecorder(settings));
  if (!environment.trace_folder.empty()) recorder->keep_copies(environment.trace_folder);
  recorder->stall_warning_ = environment.stall_warning;
  return recorder;
}

std::shared_ptr<FlightRecorder> FlightRecorder::create(const Communicator& world) {
  return create({.backend = world.backend(), .rank = world.rank(), .size = world.size()});
}

FlightRecorder::FlightRecorder(const Settings& settings) : CrashListener(Phase::record) {
  // A process may be several ranks, as threads, and may join several worlds.
  static std::atomic<unsigned> number{0};
  const auto path = fs::path(flight_folder) /
                    concat(flight_prefix(), ::getpid(), '-', number.fetch_add(1), ".flight");
  const Descriptor file(::open(flight_folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  void* memory = map_new_file(file);
  const int problem = memory == nullptr ? errno : 0;
  if (memory == nullptr) memory = map(-1);
  if (memory == MAP_FAILED) throw CommError("flight recorder: out of memory");
  file_ = new (memory) FlightFile{};
  file_->version = FlightFile::expected_version;
  file_->rank = settings.rank;
  file_->size = settings.size;
  file_->pid = ::getpid();
  file_->parent = ::getppid();
  file_->pid_namespace = pid_namespace();
  const auto process = read_process(::getpid());
  copy_text(file_->process_start, process.start);
  copy_text(file_->job, flight_job());
  copy_text(file_->program, process.name);
  copy_text(file_->backend, settings.backend);
  ::gethostname(file_->host, sizeof file_->host - 1);
  file_->begun = TickTime::now();
  file_->magic.store(FlightFile::expected_magic, std::memory_order_release);
  if (problem != 0 || !name_file(file, path)) {
    const int error = problem != 0 ? problem : errno;
    log::notice(concat("flight recorder: rank ", settings.rank, " cannot create ", path.string(),
                       ": ", std::strerror(error), "; `lockstep status` does not show the rank"));
    return;
  }
  path_ = path;
  auto& files = Files::get();
  const std::lock_guard lock(files.mutex);
  files.paths.push_back(path_);
}

FlightRecorder::~FlightRecorder() {
  stop_listening();
  if (!process_.in_child() && !path_.empty()) {
    ::unlink(path_.c_str());
    auto& files = Files::get();
    const std::lock_guard lock(files.mutex);
    std::erase(files.paths, path_);
  }
  // Ranks that were killed have left their files, and no launcher may know of them.
  const bool failed = file_->failed.load(relaxed) != 0;
  if (!process_.in_child() && failed) remove_ended_flight_records(file_->job, copies_);
  ::munmap(file_, sizeof(FlightFile));
}

std::uint16_t FlightRecorder::add_group(std::span<const int> members) {
  const int earlier = groups_[std::vector(members.begin(), members.end())]++;
  auto* free = std::ranges::find_if(file_->groups,
                                    [](const FlightGroup& group) { return group.key.load() == 0; });
  if (free == std::end(file_->groups)) --free;
  free->earlier.store(earlier, relaxed);
  free->size.store(static_cast<std::int32_t>(members.size()), relaxed);
  free->issued.store(0, relaxed);
  set_ranks(free->members, members);
  auto key = digest(std::as_bytes(members)) + static_cast<std::uint64_t>(earlier);
  free->key.store(key == 0 ? 1 : key, std::memory_order_release);
  return static_cast<std::uint16_t>(free - file_->groups);
}

void FlightRecorder::remove_group(std::uint16_t group) noexcept {
  if (process_.in_child()) return;  // the memory is the parent's
  file_->groups[group].key.store(0, relaxed);
}

void FlightRecorder::begin_wait(std::uint64_t number, bool is_bound) noexcept {
  auto& wait = file_->wait;
  const auto now = ticks();
  set_ranks(wait.missing, {});
  wait.entry.store(number, relaxed);
  wait.since.store(now, relaxed);
  wait.is_bound.store(is_bound, relaxed);
  file_->seen.store(now, relaxed);
  wait.turn.fetch_add(1);
}

void FlightRecorder::end_wait() noexcept {
  poll_wait();
  file_->wait.turn.fetch_add(1);
}

void FlightRecorder::set_missing(std::span<const int> ranks) noexcept {
  set_ranks(file_->wait.missing, ranks);
}

void FlightRecorder::keep_copies(const fs::path& folder) {
  copies_ = folder;
  copy_ = (folder / flight_file_name(rank())).string();
  part_ = concat(copy_, '.', ::getpid());
  stacks_.emplace(folder, rank());
}

bool FlightRecorder::record_failure(std::string_view text, int rank, std::uint64_t at) noexcept {
  std::uint32_t none = 0;
  if (!file_->failed.compare_exchange_strong(none, 1)) return false;
  file_->failed_rank.store(rank, relaxed);
  file_->failed_at.store(at, relaxed);
  copy_text(file_->failure, text);
  file_->failed.store(2, std::memory_order_release);
  return true;
}

int FlightRecorder::write_copy(bool has_ended) const noexcept {
  ::mkdir(copies_.c_str(), 0777);
  return write_flight_copy(*file_, has_ended, copy_.c_str(), part_.c_str());
}

void FlightRecorder::fail(std::string_view text, int rank) noexcept {
  if (process_.in_child() || !record_failure(text, rank, ticks()) || copies_.empty()) return;
  std::vector<int> stopped;
  request_stacks(job(), stopped);
  set_ranks(file_->stopped, stopped);
  if (const int error = write_copy(false); error != 0) {
    log::warn(concat("flight recorder: cannot write ", copy_, ": ", why_not_opened(part_, error)));
  }
  StackFile::write(nullptr);
}

void FlightRecorder::on_crash(const Crash& crash) noexcept {
  const auto text = crash_text(rank(), crash);
  const bool is_first = record_failure(text.view(), crashed_rank(rank()), crash.at);
  if (copies_.empty()) return;
  // The process leaves no file when its copy exists.
  if (is_first && write_copy(true) == 0 && !path_.empty()) ::unlink(path_.c_str());
  StackFile::write(crash.context);
  StackFile::await_other_writer();  // the process ends when this returns
}

std::vector<ObservedRank> FlightRecorder::ranks_on_host() const {
  std::vector<ObservedRank> found;
  for (auto& record : read_flight_records(job())) {
    if (record->size() == size()) found.push_back(observe(std::move(record)));
  }
  return found;
}

void FlightRecorder::warn_of_stall(std::chrono::duration<double> least) const {
  const auto found = diagnose(ranks_on_host(), least.count());
  if (found.waiting.empty() || found.waiting.front() != rank()) return;
  std::string text = "stalled: ";
  for (const auto& sentence : found.text) text += concat(sentence, "; ");
  log::notice(text + concat("run `lockstep status ", job(), '`'));
}

}  // namespace lockstep::detail
