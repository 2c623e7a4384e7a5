#include "tests/simulation/simulated_process.h"

#include "comm/messages/message_rank_context.h"
#include "comm/tcp/tcp.h"
#include "tests/simulation/simulated_files.h"
#include "tests/simulation/simulated_kernel.h"

namespace lockstep::testing {

int SimulatedProcess::open(std::shared_ptr<SimulatedFile> file) {
  int descriptor = 3;
  for (const auto& [used, other] : files_) {
    if (used != descriptor) break;
    ++descriptor;
  }
  files_[descriptor] = std::move(file);
  return descriptor;
}

std::shared_ptr<SimulatedFile> SimulatedProcess::file(int descriptor) const {
  const auto found = files_.find(descriptor);
  return found == files_.end() ? nullptr : found->second;
}

void SimulatedProcess::close(int descriptor) {
  const auto found = files_.find(descriptor);
  if (found == files_.end()) return;
  const auto file = std::move(found->second);
  files_.erase(found);
  for (const auto& [other, watching] : files_) {
    const auto epoll = std::dynamic_pointer_cast<SimulatedEpoll>(watching);
    if (epoll != nullptr) epoll->entries.erase(descriptor);
  }
  file->close();
}

void SimulatedProcess::end(bool closes_files) {
  over_ = true;
  auto files = std::exchange(files_, {});
  for (const auto& [descriptor, file] : files) {
    if (closes_files) {
      file->close();
    } else {
      file->vanish();
    }
  }
}

void SimulatedProcess::make_exit_calls(int exit_code) {
  while (!exit_calls_.empty()) {
    const auto call = std::move(exit_calls_.back());
    exit_calls_.pop_back();
    call(exit_code);
  }
}

void SimulatedProcess::count_socket() {
  for (auto& [number, action] : std::exchange(after_socket_, {})) {
    at_call(calls_ + number, std::move(action));
  }
}

void SimulatedProcess::count_call() {
  ++calls_;
  while (!actions_.empty() && actions_.begin()->first <= calls_) {
    actions_.extract(actions_.begin()).mapped()();
  }
}

}  // namespace lockstep::testing

namespace lockstep::inline v0_2::tcp {

/// In place of src/comm/tcp/worlds.cpp.
void keep(std::shared_ptr<messages::MessageRankContext> world) {
  testing::SimulatedKernel::process().at_exit([kept = std::move(world)](int exit_code) {
    if (exit_code == 0) kept->leave_and_wait();
  });
}

}  // namespace lockstep::tcp
