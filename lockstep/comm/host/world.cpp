#include "lockstep/comm/host/world.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/host/arena.h"
#include "lockstep/comm/host/bell.h"

namespace lockstep::host {
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
  header.failure_kind = static_cast<std::int32_t>(failure.kind);
  copy_text(header.failure_text, sizeof header.failure_text, failure.text);
  header.failed.store(2);
  ring_all(*arena_);
}

std::optional<Failure> World::failure() const {
  const auto& header = arena_->header();
  if (header.failed.load(std::memory_order_acquire) != 2) return std::nullopt;
  return Failure{.kind = static_cast<Failure::Kind>(header.failure_kind),
                 .rank = header.failed_rank,
                 .text = header.failure_text};
}

void World::mark_gone(int rank, std::string_view how) noexcept {
  auto& state = arena_->rank(rank);
  copy_text(state.how, sizeof state.how, how);
  state.status.store(RankStatus::gone);
  ring_all(*arena_);
}

bool World::joined(int rank) const {
  const auto status = arena_->rank(rank).status.load();
  return status == RankStatus::joined || status == RankStatus::left;
}

}  // namespace lockstep::host
