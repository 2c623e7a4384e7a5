#include <stdlib.h>

#include <mutex>
#include <utility>
#include <vector>

#include "comm/messages/message_rank_context.h"
#include "comm/tcp/tcp.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::tcp {
namespace {

struct Worlds {
  std::mutex mutex;
  std::vector<std::shared_ptr<messages::MessageRankContext>> all;
  detail::ForkGuard process;

  static Worlds& get() {
    static auto& worlds =
        *new Worlds;  // never destroyed: other threads may use a world until the end
    return worlds;
  }

  static void leave(int exit_code, void*) {
    if (exit_code != 0 || get().process.in_child()) return;
    const auto all = std::exchange(get().all, {});
    // Ranks may have joined the worlds in another order.
    for (const auto& world : all) {
      const auto lock = world->lock();
      world->leave();
    }
    for (const auto& world : all) world->leave_and_wait();
  }
};

}  // namespace

void keep(std::shared_ptr<messages::MessageRankContext> world) {
  auto& worlds = Worlds::get();
  const std::lock_guard lock(worlds.mutex);
  [[maybe_unused]] static const int registered = ::on_exit(Worlds::leave, nullptr);
  std::erase_if(worlds.all, [](const auto& other) { return other->end_if_left(); });
  worlds.all.push_back(std::move(world));
}

void leave_worlds() { Worlds::leave(0, nullptr); }

}  // namespace lockstep::tcp
