#include "lockstep/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "lockstep/core/text.h"
#include "lockstep/launch/children.h"
#include "lockstep/launch/terminal.h"

namespace lockstep::launch {
namespace {

using detail::concat;
using namespace std::chrono_literals;

/// For ranks that raise because another failed: to say so before they are told to end.
constexpr auto settling_time = 100ms;
/// A Ctrl-C is often answered by saving a checkpoint.
constexpr auto interrupt_grace = 5000ms;
constexpr std::size_t reported_lines = 20;

unsigned long files_needed(int ranks) {
  constexpr unsigned long own = 64;
  constexpr unsigned long of_each_rank = 7;
  return arena_descriptor + own + of_each_rank * static_cast<unsigned long>(ranks);
}

std::string own_words(std::size_t rank, pid_t pid, const Ending& ending) {
  return concat("rank ", rank, " (pid ", pid, ") ended with ", ending.text());
}

}  // namespace

Supervisor::Supervisor(const Plan& plan, Console& console)
    : plan_(plan),
      world_(host::World::create(plan.options.ranks)),
      files_(files_needed(plan.options.ranks)),
      // Before any other descriptor is opened, so that none of ours takes its number.
      arena_(fcntl(world_->fd(), F_DUPFD_CLOEXEC, arena_descriptor)),
      children_before_(children()),
      outputs_(console.outputs),
      losses_(console.losses),
      signals_(console.signals) {
  if (!arena_) throw_system("hand on the world's memory");
}

Supervisor::~Supervisor() {
  kill_all();
  for (auto& member : members_) {
    if (member.gone) continue;
    while (waitpid(member.process.pid(), nullptr, 0) < 0 && errno == EINTR) {
    }
    member.process.reap();
  }
  guardian_.dismiss();
  end_children(children_before_);
}

Outcome Supervisor::run() {
  const Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw_system("open /dev/null");
  std::vector<Ends> ends;
  for (int rank = 0; rank < plan_.options.ranks; ++rank) ends.push_back(add_streams(rank));
  for (int rank = 0; rank < plan_.options.ranks; ++rank) {
    start(rank, ends[static_cast<std::size_t>(rank)], null.get());
  }
  ends.clear();  // what ranks write ends with them
  for (auto& member : members_) member.process.await_program();

  while (!all_ended()) turn();
  end_leftovers();
  guardian_.dismiss();
  end_children(children_before_);
  for (auto& stream : streams_) {
    stream.close();
    if (stream.log().error() != 0) losses_.add(stream.log().path(), stream.log().error());
  }
  return outcome();
}

Supervisor::Ends Supervisor::add_streams(int rank) {
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
  streams_.emplace_back(std::move(pipe.read), show, rank == 0 ? "" : concat('[', rank, "] "),
                        output, std::move(log));
  return std::move(pipe.write);
}

void Supervisor::start(int rank, const Ends& ends, int null) {
  // A terminal's input stays with the launcher: ranks are not in its foreground process group.
  const bool reads = rank == 0 && isatty(STDIN_FILENO) == 0;
  const StandardStreams streams{
      .in = reads ? STDIN_FILENO : null, .out = ends.out.get(), .err = ends.err.get()};
  const Inheritance inheritance{.arena = arena_.get(),
                                .registry = guardian_.registry(),
                                .signals = signals_,
                                .files = files_};
  // Streams come in pairs, stdout before stderr.
  const auto err = std::next(streams_.begin(), 2 * rank + 1);
  members_.push_back(
      {.process = RankProcess(plan_, rank, streams, inheritance), .err = &*err, .ending = {}});
}

void Supervisor::turn() {
  std::vector<pollfd> waiting{{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
  std::vector<Stream*> sources;
  for (auto& stream : streams_) {
    if (!stream.open() || stream.output().full()) continue;
    waiting.push_back({.fd = stream.fd(), .events = POLLIN, .revents = 0});
    sources.push_back(&stream);
  }
  for (auto* output : {&outputs_.out, &outputs_.err}) {
    if (output->waiting()) {
      waiting.push_back({.fd = output->fd(), .events = POLLOUT, .revents = 0});
    }
  }
  int timeout = -1;
  if (deadline_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
    timeout = static_cast<int>(std::max<long>(0, left.count()));
  }
  if (poll(waiting.data(), waiting.size(), timeout) < 0 && errno != EINTR) {
    throw_system("wait for its ranks");
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (waiting[i + 1].revents != 0) sources[i]->read_ready();
  }
  outputs_.out.write_ready();
  outputs_.err.write_ready();
  if (waiting.front().revents != 0) handle_signals();
  const bool unread = outputs_.out.broken() || outputs_.err.broken();
  if (unread && phase_ < Phase::stopping) interrupt(SIGPIPE);
  if (deadline_ && Clock::now() >= *deadline_) escalate();
}

void Supervisor::handle_signals() {
  bool children_changed = false;
  while (const auto event = signals_.next()) {
    const auto signal = static_cast<int>(event->ssi_signo);
    if (signal == SIGCHLD) {
      children_changed = true;
      const auto pid = static_cast<pid_t>(event->ssi_pid);
      const bool ours = pid == guardian_.pid() || children_before_.contains(pid) ||
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
    } else {
      interrupt(signal);
    }
  }
  if (children_changed) look_after_ranks();
}

void Supervisor::look_after_ranks() {
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].ending) continue;
    if (const auto ending = members_[rank].process.ending()) note_end(rank, *ending);
  }
}

void Supervisor::note_end(std::size_t rank, const Ending& ending) {
  auto& member = members_[rank];
  member.ending = ending;
  member.joined = world_->joined(static_cast<int>(rank));
  const bool told = phase_ == Phase::stopping || phase_ == Phase::killing;
  member.ended_by_launcher =
      told && ending.by_signal && (ending.code == SIGTERM || ending.code == SIGKILL);
  if (ending.failed() && !told) {
    world_->fail({.kind = host::Failure::Kind::error,
                  .rank = static_cast<int>(rank),
                  .text = own_words(rank, member.process.pid(), ending)});
    if (!first_failed_) {
      first_failed_ = static_cast<int>(rank);
      phase_ = Phase::settling;
      deadline_ = Clock::now() + settling_time;
    }
  }
  world_->mark_gone(static_cast<int>(rank), ending.text());
}

void Supervisor::interrupt(int signal) {
  const bool again = interrupted_by_.has_value() || phase_ == Phase::stopping;
  if (!asked_) asked_ = signal;
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
  phase_ = Phase::stopping;
  signal_all(signal);
  signal_all(SIGCONT);
  deadline_ = Clock::now() + grace;
}

void Supervisor::kill_all() noexcept {
  phase_ = Phase::killing;
  signal_all(SIGKILL);
  deadline_.reset();
}

void Supervisor::escalate() {
  if (phase_ == Phase::settling) {
    stop(SIGTERM, plan_.options.grace);
  } else {
    kill_all();
  }
}

void Supervisor::signal_all(int signal) noexcept {
  for (const auto& member : members_) {
    if (!member.gone) member.process.signal_group(signal);
  }
}

bool Supervisor::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.ending.has_value(); });
}

bool Supervisor::groups_left() {
  for (auto& member : members_) {
    if (member.gone) continue;
    member.process.reap();
    member.gone = !member.process.signal_group(0);
  }
  return !std::all_of(members_.begin(), members_.end(),
                      [](const Member& member) { return member.gone; });
}

void Supervisor::end_leftovers() {
  if (!groups_left()) return;
  // Descendants that outlived their rank, in its group still.
  if (phase_ == Phase::running || phase_ == Phase::settling) stop(SIGTERM, plan_.options.grace);
  while (phase_ != Phase::killing && groups_left()) turn();
  // Whoever is left now was sent SIGKILL; those that others must reap are not waited for long.
  const auto limit = Clock::now() + 2s;
  while (groups_left() && Clock::now() < limit) {
    deadline_ = Clock::now() + 10ms;
    turn();
  }
}

void Supervisor::suspend() {
  signal_all(SIGSTOP);
  raise(SIGSTOP);
  signal_all(SIGCONT);
}

std::optional<int> Supervisor::first_cause() const {
  if (!first_failed_) return std::nullopt;
  const auto failure = world_->failure();
  const bool named =
      failure && failure->rank >= 0 && failure->rank < static_cast<int>(members_.size());
  return named ? failure->rank : *first_failed_;
}

std::optional<int> Supervisor::end_asked() const {
  if (asked_) return asked_;
  if (outputs_.out.broken() || outputs_.err.broken()) return SIGPIPE;
  return signals_.end_asked();
}

Outcome Supervisor::outcome() const {
  if (interrupted_by_) return {.code = 128 + *interrupted_by_, .asked = asked_};
  const auto cause = first_cause();
  return cause ? failure(*cause) : Outcome{};
}

Outcome Supervisor::failure(int cause) const {
  const auto& member = members_[static_cast<std::size_t>(cause)];
  const auto recorded = world_->failure();
  const auto own = own_words(static_cast<std::size_t>(cause), member.process.pid(), *member.ending);
  const bool told = recorded && recorded->rank == cause && recorded->text != own;
  const int code = member.ended_by_launcher
                       ? members_[static_cast<std::size_t>(*first_failed_)].ending->exit_code()
                       : std::max(1, member.ending->exit_code());
  return {.code = code,
          .cause = FirstCause{.rank = cause,
                              .ranks = plan_.options.ranks,
                              .pid = member.process.pid(),
                              .ending = *member.ending,
                              .ended_by_launcher = member.ended_by_launcher,
                              .stopped = member.was_stopped,
                              .joined = member.joined,
                              .reason = told ? recorded->text : std::string(),
                              .last_lines = member.err->tail().lines(reported_lines)},
          .asked = end_asked()};
}

}  // namespace lockstep::launch
