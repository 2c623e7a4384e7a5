#include "launch/job/processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "comm/flight/flight_record.h"
#include "core/system/process.h"
#include "core/text.h"
#include "launch/system.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

constexpr int registry_descriptor = 3;

[[noreturn]] void guard(int registry) {
  // A session of its own does not receive signals of the terminal (Ctrl-C, hangup).
  setsid();
  prctl(PR_SET_NAME, "lockstep-guard");
  // It keeps no other descriptor, such as the launcher's output and the world's memory.
  if (dup2(registry, registry_descriptor) < 0) _exit(1);
  close_range(registry_descriptor + 1, ~0U, 0);
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < registry_descriptor; ++fd) dup2(null, fd);
  close(null);
  if (chdir("/") != 0) _exit(1);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);

  std::vector<pid_t> groups;
  for (;;) {
    pid_t group = 0;
    const auto got = read(registry_descriptor, &group, sizeof(group));
    if (got == sizeof(group)) {
      groups.push_back(group);
    } else if (got >= 0 || errno != EINTR) {
      break;
    }
  }
  for (const auto group : groups) killpg(group, SIGKILL);
  detail::remove_flight_records_of(groups);  // a group has the number of its rank
  _exit(0);
}

}  // namespace

Guardian::Guardian() {
  auto pipe = make_pipe();
  pid_ = fork();
  if (pid_ < 0) throw_system("start its guardian process");
  if (pid_ == 0) guard(pipe.read.get());
  registry_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  // SIGKILL, so that it ends in any state, also if it is stopped.
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Processes::Processes() : children_before_(children()), guardian_(std::in_place) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Processes::~Processes() {
  signal_all(SIGKILL);
  const auto limit = std::chrono::steady_clock::now() + kill_time;
  for (auto& member : members_) {
    if (member.gone || member.stays) continue;
    member.stays = !await_end(member.process.pid(), limit);
    if (!member.stays) member.process.reap();
  }
  end_others();
}

void Processes::start(const Plan& plan, const std::vector<WriteEnds>& streams,
                      const Inheritance& inheritance) {
  for (const auto& ends : streams) {
    const auto rank = static_cast<int>(members_.size());
    members_.push_back({.rank = rank,
                        .world_rank = plan.first_rank + rank,
                        .process = {plan, rank, ends, inheritance, guardian_->registry()}});
  }
}

void Processes::await_start(std::vector<pollfd>& awaited) const {
  for (const auto& member : members_) {
    awaited.push_back({.fd = member.process.start_fd(), .events = POLLIN, .revents = 0});
  }
}

void Processes::check_start() {
  for (auto& member : members_) member.process.check_start();
}

bool Processes::all_ended() const { return std::ranges::all_of(members_, &Member::ended); }

bool Processes::groups_left() {
  bool left = false;
  for (auto& member : members_) {
    if (member.gone || member.stays) continue;
    member.process.reap();
    member.gone = !member.process.signal_group(0);
    left = left || !member.gone;
  }
  return left;
}

void Processes::signal_all(int signal) const noexcept {
  for (const auto& member : members_) {
    if (!member.gone) member.process.signal_group(signal);
  }
}

void Processes::reap_orphan(pid_t pid) const noexcept {
  const bool known =
      (guardian_ && pid == guardian_->pid()) || children_before_.contains(pid) ||
      std::ranges::any_of(members_, [&](const auto& m) { return m.process.pid() == pid; });
  if (!known) waitpid(pid, nullptr, WNOHANG);
}

void Processes::check_guardian(Output& err) {
  const auto ending = guardian_ ? ending_of(guardian_->pid()) : std::nullopt;
  if (!ending) return;
  err.line("", concat("lockstep: the guardian process (pid ", guardian_->pid(),
                      "), which ends the ranks if the launcher is killed, ended with ",
                      ending->text(), ". Ranks may outlive a killed launcher."));
  guardian_.reset();
}

void Processes::give_up() {
  for (auto& member : members_) {
    if (member.gone || member.ended()) continue;
    member.stays = true;
    survivors_.push_back(survivor_text(concat("rank ", member.world_rank), member.process.pid()));
  }
}

void Processes::end_others() {
  guardian_.reset();
  auto spared = children_before_;
  for (const auto& member : members_) {
    if (member.stays) spared.insert(member.process.pid());
  }
  for (const auto pid : end_children(spared, kill_time)) {
    survivors_.push_back(survivor_text("a descendant of a rank", pid));
  }
}

void Processes::forward(std::set<int>& pending, const host::World& world, Output& err) {
  const auto has_started = [](const Member& member) { return member.process.start_fd() < 0; };
  while (!pending.empty() && !all_ended()) {
    const int signal = *pending.begin();
    const bool started = std::ranges::all_of(members_, has_started);
    const auto is_ready = [&](const Member& member) {
      return member.ended() ||
             (started && (world.joined(member.rank) || member.process.handles(signal)));
    };
    const auto found = std::ranges::find_if_not(members_, is_ready);
    if (found != members_.end()) {
      if (std::exchange(wait_reported_, true)) return;
      err.line("", concat("lockstep: ", signal_name(signal), " is forwarded when rank ",
                          found->world_rank, " (pid ", found->process.pid(),
                          ") has called lockstep::init() or installed a handler"));
      return;
    }
    for (const auto& member : members_) {
      if (!member.ended()) member.process.signal_group(signal);
    }
    forwarded_.insert(signal);
    pending.erase(signal);
    wait_reported_ = false;
  }
}

namespace {

using detail::plural;
using namespace std::chrono_literals;
using std::chrono::duration_cast;
using std::chrono::seconds;

constexpr auto longest_gap = 5s;
constexpr std::size_t most_lines = 4;

}  // namespace

std::vector<std::string> RemainingRanks::update(Clock::time_point now,
                                                const std::vector<Rank>& remaining) {
  const auto gap = updated_ ? now - *updated_ : Clock::duration::zero();
  updated_ = now;
  for (auto& [rank, known] : known_) {
    if (gap >= longest_gap) known.since += gap;
  }
  std::erase_if(known_, [&](const auto& known) {
    return std::ranges::none_of(remaining, [&](const Rank& rank) {
      return rank.rank == known.first && rank.why == known.second.rank.why;
    });
  });
  std::vector<std::string> lines;
  std::size_t unsaid = 0;
  for (const auto& rank : remaining) {
    const auto [found, added] = known_.try_emplace(rank.rank);
    auto& known = found->second;
    if (added) known = {.rank = rank, .since = now, .reported = false};
    if (known.reported || stall_ == 0s || now - known.since < stall_) continue;
    known.reported = true;
    if (lines.size() < most_lines) {
      lines.push_back(line(now, known));
    } else {
      ++unsaid;
    }
  }
  if (unsaid > 0) {
    lines.push_back(concat("lockstep: the same of ", plural(unsaid, "rank"), " more"));
  }
  return lines;
}

std::string RemainingRanks::line(Clock::time_point now, const Known& known) const {
  const auto& [rank, pid, why] = known.rank;
  const auto how_long = concat(duration_cast<seconds>(now - known.since).count(), " s");
  const auto who = concat("lockstep: rank ", rank, " of ", ranks_, " (pid ", pid, ") ");
  if (why == RemainReason::stopped) {
    return concat(who, "has been stopped by a signal for ", how_long,
                  ". Continue it with kill -CONT ", pid, ", or end the job with Ctrl-C.");
  }
  return concat(who,
                why == RemainReason::left
                    ? concat("left the world ", how_long, " ago and has not ended")
                    : concat("has not ended ", how_long, " after all other ranks"),
                ": ", state_text(detail::read_process(pid).state), ". ",
                limit_ ? concat("It is ended after ", *limit_, " s (--linger).")
                       : "End the job with Ctrl-C, or limit this time with --linger SECONDS.");
}

std::optional<int> RemainingRanks::overdue(Clock::time_point now) const {
  if (!limit_) return std::nullopt;
  for (const auto& [rank, known] : known_) {
    if (known.rank.why != RemainReason::stopped && now - known.since >= Seconds(*limit_))
      return rank;
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
