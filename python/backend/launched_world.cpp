#include "backend/launched_world.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "backend/errors.h"
#include "comm/control/address.h"
#include "comm/mpi/mpi.h"
#include "core/environment.h"
#include "join/join_world.h"
#include "lockstep/error.h"

namespace lockstep_torch {

using lockstep::Backend;
using lockstep::DType;
using lockstep::Environment;

std::optional<std::pair<int, int>> launched_by_mpi() {
  return with_python_errors([]() -> std::optional<std::pair<int, int>> {
    const auto& launcher = Environment::get().launcher;
    if (!launcher || !launcher->starts_mpi()) return std::nullopt;
    return std::pair(launcher->rank, launcher->size);
  });
}

bool uses_mpi(int rank, int size) {
  const auto& environment = Environment::get();
  const auto& launcher = environment.launcher;
  const bool same = launcher && launcher->rank == rank && (size == 0 || launcher->size == size);
  if (!same || !launcher->starts_mpi() || !lockstep::mpi::available().empty()) return false;
  const auto backend = environment.backend;
  return backend == Backend::mpi || backend == Backend::hierarchical ||
         (backend == Backend::automatic && !launcher->one_host());
}

const World& launched_world(std::chrono::milliseconds timeout) {
  static const World world{lockstep::detail::join_world(
      {.timeout = timeout,
       // PyTorch's threads and denormals stay as the program has set them.
       .flush_denormals = lockstep::flushes_denormals(),
       .threads = {.set_number = [](int) { return at::get_num_threads(); },
                   .flush_denormals = [](bool) {}},
       .progress = lockstep::ProgressMode::wait})};
  return world;
}

std::vector<std::string> own_addresses(const World& launched) {
  std::vector<std::string> texts;
  if (std::ranges::max(launched.communicator->hosts()) > 0) {
    for (const auto& interface :
         lockstep::control::usable_interfaces(Environment::get().interface)) {
      for (const auto& address : interface.addresses) texts.push_back(address.host());
    }
  }
  if (texts.empty()) texts.emplace_back("127.0.0.1");
  return texts;
}

std::string from_rank_0(const World& launched, int rank, int size, const std::string& text) {
  const std::lock_guard lock(*launched.mutex);
  auto& world = *launched.communicator;
  const std::array<std::int64_t, 3> own{rank, size, static_cast<std::int64_t>(text.size())};
  std::vector<std::array<std::int64_t, 3>> all(static_cast<std::size_t>(world.size()));
  world.all_gather(own.data(), all.data(), own.size(), DType::i64).wait();
  for (int r = 0; r < world.size(); ++r) {
    const auto& [in_torch, torch_size, length] = all[static_cast<std::size_t>(r)];
    if (in_torch == r && torch_size == world.size()) continue;
    fail(c10::str("lockstep init: rank ", r, " of ", world.size(), " of the launcher is rank ",
                  in_torch, " of ", torch_size,
                  " in PyTorch, expected the same numbers; pass no rank and world_size to "
                  "init_process_group(), or those of the launcher"));
  }
  std::string answer = text;
  answer.resize(static_cast<std::size_t>(all.front().back()));
  world.broadcast(answer.data(), answer.size(), DType::u8, 0).wait();
  return answer;
}

}  // namespace lockstep_torch
