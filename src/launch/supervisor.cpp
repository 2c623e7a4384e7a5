#include "launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "comm/flight_record.h"
#include "comm/stack_file.h"
#include "core/environment.h"
#include "core/terminal.h"
#include "core/text.h"
#include "launch/children.h"
#include "launch/console.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using namespace std::chrono_literals;

/// The longest settling time, if the rank at fault is ending by itself.
constexpr auto longest_settling_time = 2000ms;
/// Longest time for the core dump of a rank that crashed.
constexpr auto longest_core_dump = std::chrono::minutes(10);
/// Programs often save a checkpoint after Ctrl-C.
constexpr auto interrupt_grace = 5000ms;
/// The cause is reported at the end of the job, at the latest this time after ranks were sent
/// SIGTERM.
constexpr auto report_delay = 1000ms;

/// The time after which ranks report that they wait, and the launcher that a rank goes on alone.
std::chrono::duration<double> stall_time(const Plan& plan) {
  constexpr double unless_set = 30;
  if (plan.options.stall_warning) return std::chrono::duration<double>(*plan.options.stall_warning);
  const auto* text = find_variable(plan.inherited, "LOCKSTEP_STALL_WARNING");
  const auto given = text != nullptr ? detail::parse_number<double>(*text) : std::nullopt;
  return std::chrono::duration<double>(given.value_or(unless_set));
}

unsigned long files_needed(int ranks) {
  constexpr unsigned long own = 64;
  constexpr unsigned long of_each_rank = 7;
  return error_descriptor + own + of_each_rank * static_cast<unsigned long>(ranks);
}

}  // namespace

Supervisor::Supervisor(const Plan& plan, Console& console)
    : plan_(plan),
      world_(host::World::create(plan.options.ranks)),
      files_(files_needed(plan.options.ranks)),
      // Before other descriptors are opened, so that none gets this number.
      arena_(fcntl(world_->fd(), F_DUPFD_CLOEXEC, arena_descriptor)),
      errors_descriptor_(fcntl(errors_.fd(), F_DUPFD_CLOEXEC, error_descriptor)),
      children_before_(children(getpid())),
      outputs_(console.outputs),
      losses_(console.losses),
      signals_(console.signals),
      to_forward_(console.to_forward),
      guardian_(std::in_place),
      remaining_(plan.options.ranks, stall_time(plan), plan.options.linger) {
  if (!arena_ || !errors_descriptor_) throw_system("hand on the world's memory");
}

Supervisor::~Supervisor() {
  kill_all();
  const auto limit = Clock::now() + kill_time;
  for (auto& member : members_) {
    if (member.gone || member.stays) continue;
    member.stays = !member.process.await_end(limit);
    if (!member.stays) member.process.reap();
  }
  guardian_.reset();
  end_orphans();
}

Outcome Supervisor::run() {
  const Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_system("open /dev/null");
  std::vector<WriteEnds> ends;
  for (int rank = 0; rank < plan_.options.ranks; ++rank) ends.push_back(add_streams(rank));
  remove_earlier_flight_records();
  for (int rank = 0; rank < plan_.options.ranks; ++rank) {
    start(rank, ends[static_cast<std::size_t>(rank)], null.get());
  }
  ends.clear();  // the streams end when the ranks have closed them
  while (!all_ended()) poll_once();
  end_leftovers();
  guardian_.reset();
  end_orphans();
  // A copy of what a killed rank did last. It says nothing after success.
  const bool failed = first_failed_ || interrupted_by_;
  detail::remove_ended_flight_records(
      plan_.run_id, failed ? plan_.options.log_directory : std::filesystem::path());
  for (auto& stream : streams_) {
    stream.close();
    if (stream.log().error() != 0) losses_.add(stream.log().path(), stream.log().error());
  }
  return outcome();
}

void Supervisor::remove_earlier_flight_records() const {
  const auto& folder = plan_.options.log_directory;
  if (folder.empty()) return;
  for (int rank = 0; rank < plan_.options.ranks; ++rank) {
    std::error_code absent;
    std::filesystem::remove(folder / detail::flight_file_name(rank), absent);
    std::filesystem::remove(folder / detail::stack_file_name(rank), absent);
  }
}

Supervisor::WriteEnds Supervisor::add_streams(int rank) {
  const auto& folder = plan_.options.log_directory;
  return {.out = add_stream(rank, outputs_.out, open_log(folder, rank, "out")),
          .err = add_stream(rank, outputs_.err, open_log(folder, rank, "err"))};
}

Descriptor Supervisor::add_stream(int rank, Output& output, Log log) {
  const bool on_terminal = isatty(output.fd()) == 1;
  if (rank == 0 && on_terminal) {
    auto terminal = make_terminal(output.fd());
    if (terminal.master) {
      terminals_.emplace_back(output.fd(), terminal.master.get());
      streams_.emplace_back(std::move(terminal.master), Show::bytes, "", output, std::move(log));
      return std::move(terminal.slave);
    }
  }
  const auto show = rank == 0             ? (on_terminal ? Show::bytes : Show::lines)
                    : plan_.options.quiet ? Show::nothing
                                          : Show::prefixed;
  auto pipe = make_pipe();
  const auto prefix = in_tone(concat('[', rank, ']'), detail::Tone::label, output.colour()) + ' ';
  streams_.emplace_back(std::move(pipe.read), show, rank == 0 ? "" : prefix, output,
                        std::move(log));
  return std::move(pipe.write);
}

void Supervisor::start(int rank, const WriteEnds& ends, int null) {
  // Ranks may not read from a terminal, because they are not in its foreground process group.
  const bool reads = rank == 0 && isatty(STDIN_FILENO) == 0;
  const StandardStreams streams{
      .in = reads ? STDIN_FILENO : null, .out = ends.out.get(), .err = ends.err.get()};
  const Inheritance inheritance{.arena = arena_.get(),
                                .errors = errors_descriptor_.get(),
                                .registry = guardian_ ? guardian_->registry() : -1,
                                .signals = signals_,
                                .files = files_};
  // There are two streams per rank, stdout before stderr.
  const auto err = std::next(streams_.begin(), 2 * rank + 1);
  members_.push_back(
      {.process = RankProcess(plan_, rank, streams, inheritance), .err = &*err, .ending = {}});
}

void Supervisor::poll_once() {
  std::vector<pollfd> waiting{{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
  std::vector<Stream*> sources;
  for (auto& stream : streams_) {
    if (!stream.open() || stream.output().full()) continue;
    waiting.push_back({.fd = stream.fd(), .events = POLLIN, .revents = 0});
    sources.push_back(&stream);
  }
  for (auto* output : {&outputs_.out, &outputs_.err}) {
    if (output->has_queued()) {
      waiting.push_back({.fd = output->fd(), .events = POLLOUT, .revents = 0});
    }
  }
  if (!started_) {
    for (const auto& member : members_) {
      waiting.push_back({.fd = member.process.start_fd(), .events = POLLIN, .revents = 0});
    }
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_check() - Clock::now());
  const auto timeout = static_cast<int>(std::max<long>(0, left.count()));
  if (poll(waiting.data(), waiting.size(), timeout) < 0 && errno != EINTR) {
    throw_system("wait for its ranks");
  }
  if (!started_) {
    started_ = true;
    for (auto& member : members_) started_ = member.process.started() && started_;
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (waiting[i + 1].revents != 0) sources[i]->read_ready();
  }
  outputs_.out.write_ready();
  outputs_.err.write_ready();
  if (waiting.front().revents != 0) handle_signals();
  forward_signals();
  const bool unread = outputs_.out.broken() || outputs_.err.broken();
  if (unread && phase_ < Phase::stopping) interrupt(SIGPIPE);
  if (report_at_ && Clock::now() >= *report_at_) report_cause();
  check_remaining_ranks();
  if (deadline_ && Clock::now() >= *deadline_) escalate();
}

Supervisor::Clock::time_point Supervisor::next_check() const {
  auto next = checked_ + between_checks;
  if (deadline_) next = std::min(next, *deadline_);
  if (report_at_) next = std::min(next, *report_at_);
  return next;
}

void Supervisor::handle_signals() {
  bool children_changed = false;
  while (const auto event = signals_.next()) {
    const auto signal = static_cast<int>(event->ssi_signo);
    if (signal == SIGCHLD) {
      children_changed = true;
      const auto pid = static_cast<pid_t>(event->ssi_pid);
      const bool ours = (guardian_ && pid == guardian_->pid()) || children_before_.contains(pid) ||
                        std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
                          return member.process.pid() == pid;
                        });
      if (!ours) waitpid(pid, nullptr, WNOHANG);  // an orphan of a rank
    } else if (signal == SIGTSTP) {
      suspend();
    } else if (signal == SIGCONT) {
      signal_all(SIGCONT);
    } else if (signal == SIGWINCH) {
      for (const auto& [model, copy] : terminals_) copy_window_size(model, copy);
    } else if (is_forwarded(signal)) {
      to_forward_.insert(signal);
    } else {
      interrupt(signal);
    }
  }
  if (!children_changed) return;
  check_ranks();
  check_guardian();
}

void Supervisor::interrupt(int signal) {
  const bool again = interrupted_by_.has_value() || phase_ == Phase::stopping;
  if (!end_signal_) end_signal_ = signal;
  if (!interrupted_by_ && !first_failed_) interrupted_by_ = signal;
  if (again) {
    kill_all();
  } else if (signal == SIGPIPE) {
    stop(SIGTERM, plan_.options.grace);
  } else {
    stop(signal, std::max(plan_.options.grace, std::chrono::milliseconds(interrupt_grace)));
  }
}

void Supervisor::stop(int signal, std::chrono::milliseconds grace) {
  for (auto& member : members_) {
    member.was_stopped = !member.ending && member.process.stopped();
  }
  if (first_failed_) report_at_ = Clock::now() + report_delay;
  phase_ = Phase::stopping;
  signal_all(signal);
  signal_all(SIGCONT);
  deadline_ = Clock::now() + grace;
}

void Supervisor::kill_all() noexcept {
  if (phase_ < Phase::killing) {
    phase_ = Phase::killing;
    deadline_ = Clock::now() + kill_time;
  }
  signal_all(SIGKILL);
}

void Supervisor::give_up() {
  phase_ = Phase::given_up;
  deadline_.reset();
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    auto& member = members_[rank];
    if (member.gone || member.ending) continue;
    member.stays = true;
    survivors_.push_back(survivor_text(concat("rank ", rank), member.process.pid()));
  }
}

void Supervisor::escalate() {
  if (phase_ == Phase::settling) {
    const auto longest = failed_at_ + longest_settling_time;
    if (cause_is_dumping_core() && Clock::now() < failed_at_ + longest_core_dump) {
      deadline_ = Clock::now() + settling_time;  // SIGKILL would truncate the core dump
    } else if (cause_is_ending() && Clock::now() < longest) {
      deadline_ = std::min(longest, Clock::now() + settling_time);
    } else {
      stop(SIGTERM, plan_.options.grace);
    }
  } else if (phase_ == Phase::stopping) {
    kill_all();
  } else {
    give_up();
  }
}

void Supervisor::signal_all(int signal) noexcept {
  for (const auto& member : members_) {
    if (!member.gone) member.process.signal_group(signal);
  }
}

bool Supervisor::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.ended(); });
}

bool Supervisor::groups_left() {
  for (auto& member : members_) {
    if (member.gone || member.stays) continue;
    member.process.reap();
    member.gone = !member.process.signal_group(0);
  }
  return !std::all_of(members_.begin(), members_.end(),
                      [](const Member& member) { return member.gone || member.stays; });
}

void Supervisor::end_leftovers() {
  if (!groups_left()) return;
  // Descendants that run after their rank has ended, in its process group.
  if (phase_ < Phase::stopping) stop(SIGTERM, plan_.options.grace);
  while (phase_ < Phase::killing && groups_left()) poll_once();
  // Processes that another process must reap send no SIGCHLD to this one.
  const auto limit = Clock::now() + kill_time;
  while (groups_left() && Clock::now() < limit) {
    deadline_ = Clock::now() + 10ms;
    poll_once();
  }
}

void Supervisor::end_orphans() {
  auto spared = children_before_;
  for (const auto& member : members_) {
    if (member.stays) spared.insert(member.process.pid());
  }
  for (const auto pid : end_children(spared, kill_time)) {
    survivors_.push_back(survivor_text("a descendant of a rank", pid));
  }
}

void Supervisor::suspend() {
  signal_all(SIGSTOP);
  raise(SIGSTOP);
  signal_all(SIGCONT);
}

}  // namespace lockstep::launch
