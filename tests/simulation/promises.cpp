#include <sstream>

#include "core/text.h"
#include "tests/simulation/attempt.h"

namespace lockstep::testing {
namespace {

using detail::concat;
using std::chrono::milliseconds;
using std::chrono::seconds;
using State = RankOutcome::State;

double in_seconds(Time time) { return static_cast<double>(time.count()) * 1e-9; }

class Promises {
 public:
  explicit Promises(Attempt& attempt)
      : attempt_(attempt), scenario_(attempt.scenario()), fault_(scenario_.fault) {}

  std::string check() {
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const auto violation = check_rank(rank);
      if (!violation.empty()) return concat("rank ", rank, ": ", violation);
    }
    return fails() ? check_same_cause() : std::string();
  }

 private:
  bool fails() const {
    return attempt_.has_fault() && attempt_.fault().has_begun && !is_harmless(fault_.kind);
  }
  int host(int rank) const { return scenario_.hosts[static_cast<std::size_t>(rank)]; }
  bool on_faulty_host(int rank) const { return host(rank) == host(fault_.rank); }

  /// Whether the fault itself ends or stops this rank.
  bool is_victim(int rank) const {
    if (!fails()) return false;
    switch (fault_.kind) {
      case FaultKind::lose_power:
        return on_faulty_host(rank);
      case FaultKind::kill:
      case FaultKind::freeze_for_ever:
      case FaultKind::program_error:
        return rank == fault_.rank;
      default:
        return false;
    }
  }

  std::string check_rank(int rank) {
    const auto& outcome = attempt_.outcome(rank);
    if (!outcome.wrong.empty()) return outcome.wrong;
    if (const auto text = reports(rank); !fails() && !text.empty()) {
      return concat("reports without a cause: ", text);
    }
    if (is_victim(rank)) return {};
    if (outcome.state == State::running) {
      return concat("hangs; the fault began at ", in_seconds(attempt_.fault().begin), " s");
    }
    if (!fails()) {
      return outcome.state == State::succeeded ? std::string()
                                               : concat("failed without a cause: ", outcome.text);
    }
    // A rank may have completed all operations before the fault, or needs no answer after it.
    if (outcome.state == State::failed) return check_failure(rank, outcome);
    const auto took = outcome.ended_at - attempt_.fault().end;
    return took > 2 * scenario_.timeout + seconds(5)
               ? concat("ended ", in_seconds(took), " s after the fault")
               : std::string();
  }

  /// What the rank wrote to stderr, without suspicions.
  std::string reports(int rank) {
    std::istringstream lines(attempt_.process(rank).stderr_text);
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      // Late packets may hold up a rank that joins.
      const bool joins = !scenario_.disturbances.empty() && line.find(" to reach ") != line.npos;
      if (!joins && line.find("suspected") == std::string::npos) text += line + '\n';
    }
    return text;
  }

  /// Longest time between a fault and the error on a rank.
  Time limit(int rank) const {
    if (fault_.kind == FaultKind::hang && rank == fault_.rank) {
      return hang_time(scenario_) + seconds(1);
    }
    const Time scheduling = milliseconds(100);
    // The end of a stream is an error 2 s later.
    if (attempt_.fault().all_had_joined && attempt_.fault().is_of_messages) {
      return seconds(2) + milliseconds(300) + scheduling;
    }
    const bool closes_connections = fault_.kind == FaultKind::kill ||
                                    fault_.kind == FaultKind::reset ||
                                    fault_.kind == FaultKind::program_error;
    if (attempt_.fault().all_had_joined && closes_connections)
      return milliseconds(200) + scheduling;
    if (attempt_.fault().all_had_joined && is_seen_by_control(fault_.kind)) {
      return scenario_.heartbeat * 3 / 2 + milliseconds(500) + scheduling;
    }
    if (attempt_.fault().all_had_joined) return scenario_.timeout + milliseconds(700) + scheduling;
    // Ranks wait for the others in several operations, then in the rendezvous of the control
    // connections.
    return 2 * scenario_.timeout + seconds(3);
  }

  std::string check_failure(int rank, const RankOutcome& outcome) {
    const auto took = outcome.ended_at - attempt_.fault().end;
    if (took > limit(rank)) {
      return concat("got its error ", in_seconds(took), " s after the fault, expected at most ",
                    in_seconds(limit(rank)), " s: ", outcome.text);
    }
    if (!names_faulty_rank(rank, outcome)) {
      return concat("blames rank ", outcome.named, ": ", outcome.text);
    }
    if (attempt_.fault().all_had_joined &&
        outcome.cause.find(expected_text()) == std::string::npos) {
      return concat("expected '", expected_text(), "': ", outcome.text);
    }
    const bool expects_timeout = fault_.kind == FaultKind::hang;
    if (attempt_.fault().all_had_joined && outcome.timeout != expects_timeout) {
      return concat(expects_timeout ? "no TimeoutError: " : "only a timeout: ", outcome.text);
    }
    return {};
  }

  /// Whether the rank that hangs has begun an operation that it does not advance. In a ring, each
  /// rank then waits for the one before it, and names that one.
  bool has_pending_operation() const {
    return fault_.step > 0 && scenario_.steps[fault_.step - 1].overlaps;
  }

  /// A part of the first cause.
  std::string_view expected_text() const {
    switch (fault_.kind) {
      case FaultKind::program_error:
        return "lost its data";
      case FaultKind::leave:
        return "left the world before";
      case FaultKind::hang:
        return "waited";
      default:
        return "";
    }
  }

  bool names_faulty_rank(int rank, const RankOutcome& outcome) const {
    const int named = outcome.named;
    // Before ranks watch one another, an operation names all ranks that it waits for.
    if (!attempt_.fault().all_had_joined) return true;
    switch (fault_.kind) {
      case FaultKind::lose_power:
        return named >= 0 && on_faulty_host(named);
      case FaultKind::cut:
      case FaultKind::cut_one_way:
        return names_other_side(rank, named);
      case FaultKind::reset:
        return named == attempt_.fault().other_side || named == fault_.rank;
      case FaultKind::mismatch:
        return true;
      case FaultKind::hang:
        return has_pending_operation() || lists(outcome.cause, fault_.rank);
      default:
        return named == fault_.rank;
    }
  }

  /// Rank 0's side of a cut names a rank of the other side, and the other side names rank 0.
  bool names_other_side(int rank, int named) const {
    if (named < 0) return false;
    const bool rank_0_is_cut_off = on_faulty_host(0);
    if (fault_.kind == FaultKind::cut_one_way) {
      return rank_0_is_cut_off ? named == 0 : on_faulty_host(named);
    }
    const bool with_rank_0 = on_faulty_host(rank) == rank_0_is_cut_off;
    return with_rank_0 ? on_faulty_host(named) != rank_0_is_cut_off : named == 0;
  }

  /// Whether a text such as "waited 1 s for ranks 0, 2" contains the rank.
  static bool lists(const std::string& text, int rank) {
    const auto ranks = text.find(" for rank");
    if (ranks == std::string::npos) return false;
    const auto number = std::to_string(rank);
    for (auto at = text.find(number, ranks); at != std::string::npos;
         at = text.find(number, at + 1)) {
      const auto after = at + number.size();
      if (text[at - 1] == ' ' && (after == text.size() || text[after] == ',')) return true;
    }
    return false;
  }

  /// Whether only one rank can detect the fault, so that the texts of all ranks are equal.
  bool has_one_text() const {
    switch (fault_.kind) {
      case FaultKind::lose_power:
        return !on_faulty_host(0);
      case FaultKind::freeze:
      case FaultKind::freeze_for_ever:
        return fault_.rank != 0;
      case FaultKind::cut:
      case FaultKind::cut_one_way:
      case FaultKind::reset:
      case FaultKind::hang:  // several ranks time out at the same time
        return false;
      default:
        return true;
    }
  }

  std::string check_same_cause() {
    if (!attempt_.fault().all_had_joined || !has_one_text()) return {};
    const RankOutcome* first = nullptr;
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const auto& outcome = attempt_.outcome(rank);
      if (outcome.state != State::failed || is_victim(rank) || rank == fault_.rank) continue;
      if (first == nullptr) first = &outcome;
      if (outcome.cause != first->cause) {
        return concat("rank ", rank, ": another first cause: '", outcome.cause, "' and '",
                      first->cause, "'");
      }
    }
    return {};
  }

  Attempt& attempt_;
  const Scenario& scenario_;
  const Fault& fault_;
};

}  // namespace

std::string broken_promise(Attempt& attempt) { return Promises(attempt).check(); }

}  // namespace lockstep::testing
