#include "comm/flight/diagnosis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "comm/operation.h"
#include "core/enum_names.h"
#include "core/system/process.h"
#include "core/text.h"

// Note [How a hang is diagnosed]
// A rank that waits in a collective waits for the members of the group that have not issued it. If
// all have issued it, it waits for those that its backend found missing. If there are none, it
// waits for those that have not completed it and do not wait themselves, because a rank advances
// operations only in its own calls. A rank that waits in a send or recv waits for the other rank.
// From every waiting rank the search follows these edges. A rank that does not wait, or is stopped
// or has ended, is the cause. Without such a rank, ranks that wait for one another are the cause,
// but only in operations that the other rank has not begun. If it has begun the operation, it
// advances it while it waits, in whatever operation: data are in transit.
// Records are read one after the other. A waiting rank begins no operation, so a cycle of waits for
// operations that were not begun exists at the time of the last reading. recorded_waits() leaves
// out what records do not prove: a wait that something else may end, an operation of a group that
// the other rank does not have (any more), a message whose other side is complete.

namespace lockstep::inline v0_2::detail {
namespace {

using State = ObservedRank::State;
using Kind = Diagnosis::Kind;
using Edge = Diagnosis::Edge;

bool is_message(Collective collective) {
  return collective == Collective::send || collective == Collective::recv;
}

bool is_in(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

class Search {
 public:
  Search(const std::vector<ObservedRank>& ranks, double least) {
    for (const auto& one : ranks) ranks_.emplace(one.rank(), &one);
    for (const auto& [rank, one] : ranks_) {
      const auto& wait = one->record->wait();
      if (!wait || wait->seconds < least || one->state == State::ended) continue;
      edges_.emplace(rank, Edge{.rank = rank, .wait = *wait, .missing = {}});
    }
    for (auto& [rank, edge] : edges_) {
      if (is_message(edge.wait.entry.collective)) {
        set_partner(edge);
      } else {
        set_late_members(edge);
      }
    }
  }

  /// The waits that are part of no operation in transit, by rank. proven: those that the records
  /// prove.
  std::map<int, PendingWait> waits_for_a_begin(bool proven) const {
    std::map<int, PendingWait> waits;
    for (const auto& [rank, edge] : edges_) {
      const auto& entry = edge.wait.entry;
      const bool for_any = entry.collective == Collective::recv && entry.peer < 0;
      if (edge.begun == Edge::Begun::yes || edge.missing.empty()) continue;
      if (proven && (edge.begun != Edge::Begun::no || !edge.wait.is_bound || for_any)) continue;
      waits.emplace(rank, PendingWait{.rank = rank,
                                      .turn = edge.wait.turn,
                                      .operation = operation_text(*ranks_.at(rank)->record, entry),
                                      .missing = edge.missing,
                                      .for_any = for_any});
    }
    return waits;
  }

  Diagnosis result() const {
    Diagnosis found;
    for (const auto& [rank, edge] : edges_) found.edges.push_back(edge);
    if (edges_.empty()) return found;
    // The ranks that some rank waits for, and that are causes themselves.
    std::set<int> roots, unseen;
    for (const auto& [rank, edge] : edges_) {
      for (const int one : edge.missing) {
        if (!ranks_.contains(one)) {
          unseen.insert(one);
        } else if (is_root(one)) {
          roots.insert(one);
        }
      }
    }
    // A rank without a record here may be the cause of all. One that is known to have ended, or to
    // compute, is certain.
    if (!roots.empty()) {
      fill(found, Kind::missing, roots);
    } else if (!unseen.empty()) {
      fill(found, Kind::unseen, unseen);
    } else if (const auto cycle = cycle_ranks(); !cycle.empty()) {
      fill(found, Kind::deadlock, cycle);
    } else {
      found.kind = Kind::transit;
      for (const auto& [rank, edge] : edges_) found.ranks.push_back(rank);
      found.waiting = found.ranks;
      found.seconds = edges_.begin()->second.wait.seconds;
    }
    return found;
  }

 private:
  bool is_root(int rank) const {
    const auto state = ranks_.at(rank)->state;
    return state == State::stopped || state == State::ended || !edges_.contains(rank);
  }

  /// Whether the rank has issued the collective of a group, as far as its record shows. One that
  /// has issued another collective in its place never does.
  static bool has_issued(const FlightRecord& record, const FlightRecord::Entry& entry) {
    const auto* group = record.group(entry.group);
    const auto is_in_its_place = [&](const FlightRecord::Entry& other) {
      return other.group == entry.group && other.sequence == entry.sequence &&
             other.collective != entry.collective && !is_message(other.collective);
    };
    return group != nullptr && group->issued >= entry.sequence && has_any(record, entry.group) &&
           std::ranges::none_of(record.entries(), is_in_its_place);
  }
  /// Sequence numbers begin with 0 only for the operation that creates the group.
  static bool has_any(const FlightRecord& record, std::uint64_t group) {
    return std::ranges::any_of(record.entries(),
                               [&](const auto& entry) { return entry.group == group; }) ||
           record.group(group)->issued > 0;
  }

  /// The other side of a message: the peer, or what the backend knows of a receive from any rank.
  void set_partner(Edge& edge) const {
    const auto& entry = edge.wait.entry;
    const auto counterpart =
        entry.collective == Collective::send ? Collective::recv : Collective::send;
    edge.missing = entry.peer < 0 ? edge.wait.missing : std::vector{entry.peer};
    edge.begun = Edge::Begun::no;
    // An earlier receive of this rank may be the one that the peer's next message completes.
    for (const auto& own : ranks_.at(edge.rank)->record->entries()) {
      const bool is_earlier = own.number < entry.number && !own.ended;
      if (is_earlier && own.group == entry.group && own.collective == entry.collective) {
        edge.begun = Edge::Begun::unknown;
      }
    }
    for (const int one : edge.missing) {
      const auto other = ranks_.find(one);
      if (other == ranks_.end()) continue;
      const auto& record = *other->second->record;
      if (record.group(entry.group) == nullptr) edge.begun = Edge::Begun::unknown;
      for (const auto& theirs : record.entries()) {
        const bool is_other_side = theirs.group == entry.group &&
                                   theirs.collective == counterpart &&
                                   (theirs.peer == edge.rank || theirs.peer < 0);
        if (!is_other_side) continue;
        if (!theirs.ended) {
          // While it waits, in whatever operation, it advances its side.
          edge.begun = Edge::Begun::yes;
          return;
        }
        // A side that is complete has matched a message with another tag, or its data are on the
        // way.
        if (theirs.peer < 0 || theirs.sequence >= entry.sequence) {
          edge.begun = Edge::Begun::unknown;
        }
      }
    }
  }

  /// The members that have not issued the collective; if all have, those without whose data it
  /// cannot complete.
  void set_late_members(Edge& edge) const {
    const auto& wait = edge.wait;
    const auto& entry = wait.entry;
    const auto* group = ranks_.at(edge.rank)->record->group(entry.group);
    edge.missing = wait.missing;
    edge.begun = Edge::Begun::yes;
    if (group == nullptr) return;
    std::vector<int> late, unseen, idle;
    bool is_proven = true;
    for (const int member : group->members) {
      if (member == edge.rank) continue;
      const auto other = ranks_.find(member);
      if (other == ranks_.end()) {
        unseen.push_back(member);
        continue;
      }
      const auto& record = *other->second->record;
      if (!has_issued(record, entry)) {
        late.push_back(member);
        is_proven = is_proven && record.group(entry.group) != nullptr;
        continue;
      }
      const auto same = std::ranges::find_if(record.entries(), [&](const auto& theirs) {
        return theirs.group == entry.group && theirs.collective == entry.collective &&
               theirs.sequence == entry.sequence;
      });
      const bool complete = same == record.entries().end() || same->ended;
      if (!complete && is_root(member)) idle.push_back(member);
    }
    if (!late.empty()) {
      edge.missing = late;
      edge.begun = is_proven ? Edge::Begun::no : Edge::Begun::unknown;
      return;
    }
    // The backend knows which data have arrived, also from ranks without a record here.
    std::vector<int> known;
    for (const int one : wait.missing) {
      if (!ranks_.contains(one) || is_root(one)) known.push_back(one);
    }
    if (!known.empty()) {
      edge.missing = known;
    } else if (!idle.empty()) {
      edge.missing = idle;
    } else if (wait.missing.empty()) {
      edge.missing = unseen;
    }
  }

  /// The ranks of a cycle of waits that never end; of several cycles, that with the fewest ranks.
  /// If one of them waits for two or more ranks, which wait for it alone, that rank.
  std::set<int> cycle_ranks() const {
    auto waits = waits_for_a_begin(false);
    keep_endless(waits);
    std::set<int> best;
    for (const auto& [start, wait] : waits) {
      std::set<int> cycle;
      for (const auto& one : endless_cycle(waits, start)) cycle.insert(one.rank);
      if (best.empty() || cycle.size() < best.size()) best = std::move(cycle);
    }
    for (const int rank : best) {
      const auto& missing = waits.at(rank).missing;
      const bool alone = std::ranges::all_of(missing, [&](int other) {
        return waits.contains(other) && waits.at(other).missing == std::vector{rank};
      });
      if (alone && missing.size() > 1) return {rank};
    }
    return best;
  }

  void fill(Diagnosis& found, Kind kind, const std::set<int>& ranks) const {
    found.kind = kind;
    found.ranks.assign(ranks.begin(), ranks.end());
    for (const auto& [rank, edge] : edges_) {
      const bool direct = std::ranges::any_of(
          edge.missing, [&](int one) { return ranks.contains(one) && one != rank; });
      if (!direct) continue;
      found.waiting.push_back(rank);
      found.seconds = std::max(found.seconds, edge.wait.seconds);
    }
  }

  std::map<int, const ObservedRank*> ranks_;
  std::map<int, Diagnosis::Edge> edges_;
};

/// Describes what a rank does, as "it has waited in all_reduce #17 of the world for 3.1 s". Of a
/// stopped one: "its process is stopped (SIGSTOP or a debugger); its last operation is …".
std::string activity_text(const ObservedRank& rank) {
  const auto& record = *rank.record;
  const auto& wait = record.wait();
  const auto last =
      record.entries().empty()
          ? std::string("it has issued no operation")
          : concat("its last operation is ", operation_text(record, record.entries().back()),
                   record.entries().back().ended ? ", complete" : ", not complete");
  if (rank.state == State::ended) {
    return concat("its process has ended, at most ", duration_text(record.silent()), " ago; ",
                  last);
  }
  if (rank.state == State::stopped) {
    return concat("its process is stopped (SIGSTOP or a debugger); ", last);
  }
  if (wait) {
    return concat("it has waited in ", operation_text(record, wait->entry), " for ",
                  duration_text(wait->seconds));
  }
  return concat("it has made no call of Lockstep for ", duration_text(record.silent()), "; ", last);
}

std::vector<std::string> describe(const Diagnosis& found, const std::vector<ObservedRank>& ranks) {
  std::vector<std::string> text;
  if (found.kind == Kind::none) return text;
  const auto observed = [&](int rank) -> const ObservedRank& {
    return *std::ranges::find(ranks, rank, &ObservedRank::rank);
  };
  const auto add_waits = [&](const auto& is_chosen) {
    // Ranks that wait in the same operation share a line.
    std::map<std::string, std::pair<std::vector<int>, double>> by_operation;
    std::vector<std::string> order;
    for (const auto& edge : found.edges) {
      if (!is_chosen(edge.rank)) continue;
      const auto whom =
          edge.missing.empty() ? std::string() : concat("for ", rank_list(edge.missing), ' ');
      const auto what =
          concat(whom, "in ", operation_text(*observed(edge.rank).record, edge.wait.entry));
      auto& [members, seconds] = by_operation[what];
      if (members.empty()) order.push_back(what);
      members.push_back(edge.rank);
      seconds = std::max(seconds, edge.wait.seconds);
    }
    for (const auto& what : order) {
      const auto& [members, seconds] = by_operation[what];
      text.push_back(concat(rank_list(members), members.size() == 1 ? " has" : " have", " waited ",
                            what, " for ", duration_text(seconds)));
    }
  };
  if (found.kind == Kind::missing) {
    for (const int one : found.ranks) {
      text.push_back(concat("the others wait for rank ", one, ": ", activity_text(observed(one))));
    }
  } else if (found.kind == Kind::unseen) {
    for (const int one : found.ranks) {
      text.push_back(concat("the others wait for rank ", one,
                            ", which has no record on this host: it is on another host, has ended, "
                            "or has not called init(); run `lockstep status` on its host"));
    }
  } else if (found.kind == Kind::deadlock) {
    text.push_back(found.ranks.size() == 1
                       ? concat("deadlock: rank ", found.ranks[0],
                                " waits in another operation than the ranks that wait for it")
                       : concat("deadlock: ", rank_list(found.ranks), " wait for one another"));
  } else {
    text.push_back("no rank is missing: the data of the operation are in transit");
  }
  const bool is_deadlock = found.kind == Kind::deadlock;
  add_waits([&](int rank) {
    return is_in(found.waiting, rank) || (is_deadlock && is_in(found.ranks, rank));
  });
  add_waits([&](int rank) { return !is_in(found.waiting, rank) && !is_in(found.ranks, rank); });
  return text;
}

}  // namespace

ObservedRank observe(std::shared_ptr<const FlightRecord> record) {
  ObservedRank rank{.record = std::move(record)};
  const auto& file = rank.record->file();
  if (file.last.ticks != 0) {
    if (file.was_ended) rank.state = State::ended;
    if (file.was_stopped) rank.state = State::stopped;
  } else if (has_ended(file)) {
    rank.state = State::ended;
  } else {
    rank.state = read_process(file.pid).stopped() ? State::stopped : State::running;
  }
  return rank;
}

std::string_view name(Diagnosis::Kind kind) {
  constexpr EnumNames<Kind::transit> kinds("none", "missing", "deadlock", "unseen", "transit");
  return kinds.of(kind);
}

WaitOf recorded_waits(const std::vector<ObservedRank>& ranks) {
  std::set<int> numbers;
  for (const auto& one : ranks) {
    // Records of two worlds, or groups that share the last entry of their table.
    const bool is_full = one.record->groups().size() == FlightFile::most_groups;
    if (is_full || !numbers.insert(one.rank()).second) return no_waits;
  }
  return [waits = Search(ranks, 0).waits_for_a_begin(true)](int rank) {
    const auto found = waits.find(rank);
    return found == waits.end() ? std::nullopt : std::optional(found->second);
  };
}

Diagnosis diagnose(const std::vector<ObservedRank>& ranks, double least) {
  auto found = Search(ranks, least).result();
  found.text = describe(found, ranks);
  return found;
}

std::string group_text(const FlightRecord& record, std::uint64_t key) {
  const auto* group = record.group(key);
  if (group == nullptr) return "a group that was left";
  if (group->size == record.size() && group->earlier == 0) return "the world";
  const auto members =
      group->members.empty() ? concat(group->size, " ranks") : rank_list(group->members);
  if (group->earlier == 0) return concat("the group of ", members);
  return concat("group ", group->earlier + 1, " of ", members);
}

std::string operation_text(const FlightRecord& record, const FlightRecord::Entry& entry) {
  if (entry.collective == Collective::barrier && entry.sequence == 0) {
    const auto group = group_text(record, entry.group);
    return group == "the world" ? std::string("init()") : concat("split() into ", group);
  }
  return concat(entry.label(), " of ", group_text(record, entry.group),
                in_parentheses(std::bit_cast<Source>(entry.source)));
}

std::string duration_text(double seconds) {
  const auto rounded = [](double value) { return std::round(value * 10) / 10; };
  if (seconds < 0.1) return concat(std::round(seconds * 1000), " ms");
  if (seconds < 120) return concat(rounded(seconds), " s");
  if (seconds < 7200) return concat(rounded(seconds / 60), " min");
  return concat(rounded(seconds / 3600), " h");
}

}  // namespace lockstep::detail
