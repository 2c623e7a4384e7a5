#include "comm/host/world/world.h"

#include "comm/host/world/rank_end.h"
#include "comm/host/world/wake_flag.h"
#include "core/signal_safe_text.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {

using detail::copy_text;

void World::fail(Failure::Kind kind, int rank, int elsewhere, std::string_view text) noexcept {
  auto& header = this->header();
  const bool first = header.failed.write_once([&] {
    header.failed_rank = rank;
    header.failed_elsewhere = elsewhere;
    header.failure_kind = kind;
    copy_text(header.failure_text, text);
  });
  if (first) wake_all(*this);
}

std::optional<Failure> World::failure() const {
  const auto& header = this->header();
  if (!header.failed.readable()) return std::nullopt;
  Failure failure{
      .kind = header.failure_kind, .rank = header.failed_rank, .text = header.failure_text};
  using Kind = Failure::Kind;
  const bool explained = failure.kind == Kind::error || failure.kind == Kind::left ||
                         failure.kind == Kind::abandoned || failure.kind == Kind::crashed;
  // The second step follows a rank that repeats another's error to that rank.
  for (int step = 0; step < 2 && explained && failure.rank >= 0 && failure.rank < size(); ++step) {
    const auto& state = this->rank(failure.rank);
    const auto error = state.error.readable() ? error_of(failure.rank) : std::nullopt;
    if (!error) break;
    const auto who =
        error->is_of_rank() ? "" : detail::concat("rank ", state.error_world_rank, ": ");
    failure = {.kind = Kind::error, .rank = state.error_origin, .text = who + error->text};
  }
  return failure;
}

int World::failed_elsewhere() const { return header().failed_elsewhere; }

void World::record_error(int rank, const detail::ErrorRecord& record, int world_rank) noexcept {
  auto& state = this->rank(rank);
  const bool is_failure = record.of_world() && header().failed.readable();
  if (record.raised || is_failure) {
    if (!state.error.readable()) state.error_slot.write(record);
    return;
  }
  state.error.write_once([&] {
    // The ranks of one world follow one another.
    const int origin = record.rank - world_rank + rank;
    const bool is_other = record.is_of_rank() && origin >= 0 && origin < size();
    state.error_origin = is_other ? origin : rank;
    state.error_world_rank = world_rank;
    state.error_slot.write(record);
  });
}

std::optional<detail::ErrorRecord> World::error_of(int rank) const {
  return this->rank(rank).error_slot.read();
}

void World::leave(int rank, std::string_view how) noexcept {
  copy_text(this->rank(rank).leave_text.text, how);
  set_left(*this, rank);
}

void World::mark_ended(int rank, std::string_view how) noexcept {
  set_ended(*this, rank, [&](RankState& state) { copy_text(state.end_text.text, how); });
}

std::string_view World::end_text(int rank) const {
  const auto* end = end_text_of(this->rank(rank));
  return end == nullptr ? std::string_view() : end->text;
}

bool World::joined(int rank) const {
  const auto status = this->rank(rank).status.load(StdAtomics::order(Access::status_read));
  return status == RankStatus::joined || status == RankStatus::left;
}

bool World::left(int rank) const {
  return this->rank(rank).status.load(StdAtomics::order(Access::status_read)) == RankStatus::left;
}

bool World::left_well(int rank) const {
  const auto* end = end_text_of(this->rank(rank));
  const std::string_view how = end == nullptr ? "runs" : end->text;
  return how.empty() || how == "returned" || how == "exit code 0";
}

void World::set_raised_failure(int rank) noexcept {
  this->rank(rank).raised_failure.store(1, StdAtomics::order(Access::failure_raise));
}

bool World::raised_failure(int rank) const {
  return this->rank(rank).raised_failure.load(StdAtomics::order(Access::failure_raised)) != 0;
}

}  // namespace lockstep::host
