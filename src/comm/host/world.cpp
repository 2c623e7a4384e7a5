#include "comm/host/world.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "comm/host/arena.h"
#include "comm/host/wake_flag.h"

namespace lockstep::inline v0_2::host {
namespace {

void copy_text(char* to, std::size_t capacity, std::string_view text) {
  const std::size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace

World::World(std::unique_ptr<Arena> arena) : arena_(std::move(arena)) {}
World::~World() = default;

std::shared_ptr<World> World::create(int size, std::size_t heap_bytes) {
  return std::shared_ptr<World>(new World(Arena::create(size, heap_bytes)));
}

std::shared_ptr<World> World::attach(int fd, int size) {
  return std::shared_ptr<World>(new World(Arena::attach(fd, size)));
}

int World::size() const { return arena_->size(); }
int World::fd() const { return arena_->fd(); }

void World::fail(const Failure& failure) noexcept {
  auto& header = arena_->header();
  std::uint32_t none = 0;
  if (!header.failed.compare_exchange_strong(none, 1)) return;
  header.failed_rank = failure.rank;
  header.failed_world_rank = failure.world_rank;
  header.failure_kind = static_cast<std::int32_t>(failure.kind);
  copy_text(header.failure_text, sizeof header.failure_text, failure.text);
  header.failed.store(2);
  wake_all(*arena_);
}

std::optional<Failure> World::failure() const {
  const auto& header = arena_->header();
  if (header.failed.load(std::memory_order_acquire) != 2) return std::nullopt;
  Failure failure{.kind = static_cast<Failure::Kind>(header.failure_kind),
                  .rank = header.failed_rank,
                  .text = header.failure_text,
                  .world_rank = header.failed_world_rank};
  using Kind = Failure::Kind;
  const bool explained =
      failure.kind == Kind::error || failure.kind == Kind::left || failure.kind == Kind::abandoned;
  // The second step follows a rank that repeats another's error to that rank.
  for (int step = 0; step < 2 && explained && has_recorded_error(failure.rank); ++step) {
    const auto& state = arena_->rank(failure.rank);
    failure = {.kind = Kind::error, .rank = state.error_origin, .text = state.error_text};
  }
  return failure;
}

void World::record_error(int rank, std::string_view text, int origin) noexcept {
  auto& state = arena_->rank(rank);
  std::uint32_t none = 0;
  if (!state.error.compare_exchange_strong(none, 1)) return;
  state.error_origin = origin >= 0 && origin < size() ? origin : rank;
  copy_text(state.error_text, sizeof state.error_text, text);
  state.error.store(2, std::memory_order_release);
}

bool World::has_recorded_error(int rank) const {
  return rank >= 0 && rank < size() &&
         arena_->rank(rank).error.load(std::memory_order_acquire) == 2;
}

void World::keep(std::shared_ptr<World> world) noexcept {
  static std::mutex mutex;
  static std::shared_ptr<World> kept;
  const std::lock_guard lock(mutex);
  kept = std::move(world);
}

void World::record_end(int rank, std::string_view how) noexcept {
  auto& state = arena_->rank(rank);
  copy_text(state.end_text, sizeof state.end_text, how);
}

void World::mark_ended(int rank, std::string_view how) noexcept {
  record_end(rank, how);
  arena_->rank(rank).status.store(RankStatus::ended);
  wake_all(*arena_);
}

bool World::joined(int rank) const {
  const auto status = arena_->rank(rank).status.load();
  return status == RankStatus::joined || status == RankStatus::left;
}

bool World::left(int rank) const { return arena_->rank(rank).status.load() == RankStatus::left; }

bool World::raised_failure(int rank) const { return arena_->rank(rank).raised_failure.load() != 0; }

}  // namespace lockstep::host
