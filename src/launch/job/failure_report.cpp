#include "launch/job/failure_report.h"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "core/environment.h"
#include "core/system/terminal.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "launch/job/nodes.h"
#include "launch/job/output.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::ErrorRecord;
using detail::Failure;
using detail::in_tone;
using detail::plain_line;
using detail::Tone;

/// Whether the rank's error repeats another rank's error, as all_or_none() does.
bool repeats(std::span<const RankFacts> ranks, std::size_t rank) {
  const auto& error = *ranks[rank].error;
  const auto first = static_cast<std::size_t>(error.rank);
  return error.repeats && error.rank >= 0 && first != rank && first < ranks.size() &&
         ranks[first].error;
}

Role role_of(std::span<const RankFacts> ranks, std::size_t rank) {
  const auto& facts = ranks[rank];
  const bool own = facts.error && !facts.error->of_world() && !facts.raised_failure;
  if (own && repeats(ranks, rank)) return Role::follower;
  if (facts.failed && (own || (facts.crashed && !facts.raised_failure))) return Role::erred;
  if (own) return Role::erred_and_was_ended;
  if (!facts.failed) return Role::bystander;
  if (facts.raised_failure || facts.error) return Role::follower;
  return facts.late ? Role::failed_late : Role::failed;
}

bool has_own_text(const std::optional<ErrorRecord>& error) {
  return error && !error->of_world() && !error->text.empty();
}

}  // namespace

std::optional<int> rank_at_fault(std::span<const RankFacts> ranks, std::optional<int> recorded) {
  const auto erred = [](Role role) { return role >= Role::erred_and_was_ended; };
  if (recorded && !erred(role_of(ranks, static_cast<std::size_t>(*recorded)))) return recorded;
  std::optional<int> found;
  std::tuple<Role, bool, bool, bool> best{Role::bystander, false, false, false};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool is_recorded = recorded == static_cast<int>(rank);
    auto role = role_of(ranks, rank);
    // Of several ranks with errors of their own, the world records the one that left first, which
    // is random.
    if (recorded && erred(role)) role = Role::erred;
    const std::tuple here{role, ranks[rank].shows_error, ranks[rank].wrote_error, is_recorded};
    if (role == Role::bystander || here <= best) continue;
    best = here;
    found = static_cast<int>(rank);
  }
  return found;
}

std::string end_text(const Member& member) {
  return concat("rank ", member.world_rank, " (pid ", member.process.pid(), ") ended with ",
                member.ending->text());
}

std::optional<Failure> recorded_failure(const host::World& world,
                                        const std::vector<Member>& members) {
  const auto failure = world.failure();
  if (!failure || failure->rank < 0) return std::nullopt;
  const auto rank = static_cast<std::size_t>(failure->rank);
  if (rank >= members.size()) return std::nullopt;
  const bool by_launcher = members[rank].ending && failure->text == end_text(members[rank]);
  return by_launcher ? std::nullopt : failure;
}

namespace {

/// The fault of a rank that had not ended when the launcher ended the job.
std::string fault_of_running_rank(const Member& rank, std::optional<Failure::Kind> kind,
                                  bool joined) {
  using Kind = Failure::Kind;
  if (rank.lingered) {
    return concat("went on for ", *rank.lingered, " s ",
                  joined ? "after it left the world" : "after all other ranks ended",
                  " (--linger)");
  }
  if (rank.stopped) return "was stopped (SIGSTOP)";
  if (kind == Kind::error) return "raised an error and had not ended yet";
  if (kind == Kind::left) return "left the world before the others and had not ended yet";
  if (kind == Kind::crashed) return "crashed and had not ended yet";
  if (kind == Kind::mismatch) return "called another operation than the others";
  if (!joined) return "never called lockstep::init()";
  return "did not take part in an operation that others waited for";
}

/// kind: of its recorded failure. joined: it had joined the world by init().
std::string event_text(const Member& rank, std::optional<Failure::Kind> kind, bool joined) {
  const bool by_launcher = rank.ended_by_launcher || rank.stays;
  if (!rank.ending || by_launcher) {
    return fault_of_running_rank(rank, kind, joined) + (rank.ending ? "; the launcher ended it"
                                                        : by_launcher
                                                            ? "; the launcher could not end it"
                                                            : "; the launcher ends it");
  }
  if (!rank.ending->failed()) {
    return concat("left early with exit code 0",
                  joined ? "" : ", without calling lockstep::init(),",
                  " while others waited for it");
  }
  if (rank.forwarded) {
    return concat("was ended by ", rank.ending->text(),
                  ", which the launcher forwarded: install a handler for it before "
                  "lockstep::init(), or pass --no-forward-signals");
  }
  const auto memory = rank.out_of_memory.empty() ? "" : concat("; ", rank.out_of_memory);
  return concat(rank.ending->by_signal ? "was ended by " : "ended with ", rank.ending->text(),
                memory);
}

}  // namespace

std::optional<FirstCause> first_cause(const Plan& plan, const std::vector<Member>& members,
                                      const Inheritance& inheritance, const Streams& streams,
                                      const FirstFailure& first) {
  constexpr auto same_moment = std::chrono::milliseconds(100);
  constexpr std::size_t reported_lines = 20;
  const auto& world = *inheritance.world;
  std::vector<RankFacts> facts;
  for (const auto& member : members) {
    const auto& tail = streams.err(member.rank).tail();
    auto error = world.error_of(member.rank);
    const bool shown = error && tail.contains(error->text);
    if (error && error->raised && !shown) error.reset();
    // World ranks become those of this host.
    if (error && error->rank >= 0) error->rank -= plan.first_rank;
    const bool elsewhere = error && error->repeats &&
                           (error->rank < 0 || error->rank >= static_cast<int>(members.size()));
    const bool failed = member.ending && member.ending->failed() && !member.ended_by_launcher;
    facts.push_back({.failed = failed || member.lingered,
                     .crashed = failed && member.ending->by_signal,
                     .late = member.end_time > first.time + same_moment,
                     .raised_failure = world.raised_failure(member.rank) || elsewhere,
                     .wrote_error = !tail.empty(),
                     .shows_error = shown && has_own_text(error),
                     .error = error});
  }
  const auto failure = recorded_failure(world, members);
  const auto recorded = failure ? std::optional(failure->rank) : std::nullopt;
  const int cause = rank_at_fault(facts, recorded).value_or(first.rank);
  if (cause < 0) return std::nullopt;
  const auto& member = members[static_cast<std::size_t>(cause)];
  const auto& stream = streams.err(cause);
  FirstCause found{.rank = cause,
                   .role = role_of(facts, static_cast<std::size_t>(cause)),
                   .last_lines = stream.tail().lines(reported_lines)};
  found.lines_shown_last = stream.shown_last(found.last_lines.size());
  std::optional<Failure::Kind> kind;
  const auto& error = facts[static_cast<std::size_t>(cause)].error;
  const bool own_error = has_own_text(error);
  if (recorded == cause) {
    // A failure of the world that this host's memory does not hold came over the network.
    const bool came_from_another_host = error && error->of_world() && !world.raised_failure(cause);
    if (!came_from_another_host) found.role = std::max(found.role, Role::failed);
    kind = failure->kind;
    // The report names the signal already.
    const bool is_told = failure->kind == Failure::Kind::crashed && member.ending;
    if (!is_told) found.reason = failure->text;
  } else if (own_error) {
    kind = Failure::Kind::error;
    found.reason = error->text;
  }
  // The text of an uncaught error is hidden among other words, so the recorded reason is printed.
  const bool is_hidden = recorded == cause && (!member.ending || member.ending->by_signal);
  std::string printed;
  for (const auto& line : found.last_lines) printed += line + '\n';
  found.lines_hold_reason = !is_hidden && own_error && found.reason.ends_with(error->text) &&
                            printed.find(error->text) != std::string::npos;
  found.who = concat("rank ", member.world_rank, " of ", plan.world_size, " failed first: it ",
                     event_text(member, kind, member.joined || world.joined(cause)), " (host ",
                     detail::host_name(), ", pid ", member.process.pid(), ")");
  return found;
}

namespace {

std::string label(bool colour) { return in_tone("lockstep:", Tone::error, colour); }

}  // namespace

std::string report(const FirstCause& cause, bool colour) {
  auto text = concat(label(colour), ' ', in_tone(cause.who, Tone::strong, colour), '.');
  if (!cause.reason.empty() && !cause.lines_hold_reason) {
    const auto lines = detail::lines_in(cause.reason);
    text += concat("\n  Reason: ", detail::joined(lines, "\n    ", plain_line));
  }
  if (cause.role == Role::lost_node) return text;
  if (cause.last_lines.empty()) return text + "\n  It wrote nothing to stderr.";
  if (cause.lines_shown_last) {
    return text + (cause.lines_hold_reason ? "\n  Its error is printed above."
                                           : "\n  Its last output on stderr is above.");
  }
  text += concat("\n  Its last ", detail::plural(cause.last_lines.size(), "line"), " of stderr:");
  for (const auto& line : cause.last_lines) text += concat("\n  | ", plain_line(line));
  return text;
}

std::string restart_line(const FirstCause& cause, int restart, int most,
                         std::chrono::milliseconds delay, bool colour) {
  return concat(
      label(colour), " restart ", restart, " of ", most, ": ", cause.who,
      cause.reason.empty()
          ? ""
          : concat("; reason: ", detail::joined(detail::lines_in(cause.reason), " ", plain_line)),
      "; all ranks start again in ", delay.count() / 1000.0, " s");
}

namespace {

/// The fields of text_of(), divided by a character that no terminal shows.
constexpr char divider = '\x1f';
struct Field {
  enum : std::size_t { code, signal, may_restart, host, role, who, reason, holds_reason, lines };
};

int number_in(const std::string& field) { return detail::parse_number<int>(field).value_or(0); }

}  // namespace

std::string text_of(const Outcome& outcome) {
  const auto cause = outcome.cause.value_or(FirstCause{});
  std::string text =
      concat(outcome.code, divider, outcome.signalled.empty() ? outcome.end_signal.value_or(0) : 0,
             divider, outcome.may_restart ? 1 : 0, divider, detail::host_name(), divider,
             static_cast<int>(outcome.cause ? cause.role : Role::bystander), divider, cause.who,
             divider, cause.reason, divider, cause.lines_hold_reason ? 1 : 0);
  for (const auto& line : cause.last_lines) text += divider + line;
  return text;
}

Outcome agreed(Outcome own, int node, const std::vector<std::string>& texts) {
  Outcome all = std::move(own);
  auto best = all.cause ? all.cause->role : Role::bystander;
  std::size_t best_node = all.cause ? static_cast<std::size_t>(node) : texts.size();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (static_cast<int>(i) == node || texts[i].empty()) continue;
    auto cause = FirstCause{};
    int failed_with = 1;
    if (texts[i].starts_with(Nodes::lost_text)) {
      cause.role = Role::lost_node;
      cause.who = texts[i].substr(Nodes::lost_text.size());
    } else {
      auto fields = detail::lines_in(texts[i], divider);
      fields.resize(std::max<std::size_t>(fields.size(), Field::lines));
      failed_with = number_in(fields[Field::code]);
      cause.role = static_cast<Role>(number_in(fields[Field::role]));
      cause.who = fields[Field::who];
      cause.reason = fields[Field::reason];
      cause.lines_hold_reason = fields[Field::holds_reason] == "1";
      cause.last_lines.assign(fields.begin() + Field::lines, fields.end());
      const int signal = number_in(fields[Field::signal]);
      if (signal != 0 && (!all.end_signal || !all.signalled.empty())) {
        all.end_signal = signal;
        all.signalled = concat(" on host ", fields[Field::host]);
      }
      all.may_restart = all.may_restart && fields[Field::may_restart] == "1";
    }
    // Of equal causes, that of the lowest node.
    const bool wins = cause.role > best || (cause.role == best && i < best_node);
    if (cause.who.empty() || !wins) continue;
    best = cause.role;
    best_node = i;
    all.cause = std::move(cause);
    all.code = failed_with;
  }
  if (!all.cause) all.code = all.end_signal ? 128 + *all.end_signal : 0;
  return all;
}

}  // namespace lockstep::launch
