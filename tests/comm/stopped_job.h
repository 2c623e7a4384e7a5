#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/system/process.h"

namespace lockstep::testing {

inline bool is_stopped(std::int64_t pid) { return lockstep::detail::read_process(pid).stopped(); }

/// Every rank's process.
inline std::vector<std::int64_t> pids_of(Communicator& group) {
  const std::int64_t own = ::getpid();
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&own, all.data(), 1, DType::i64).wait();
  return all;
}

/// Rank 0 is stopped while it waits and rank 1 while it computes, both for longer than the timeout.
/// Then all three ranks issue a barrier.
inline void stop_for_longer_than(std::chrono::milliseconds timeout, Communicator& group) {
  const auto all = pids_of(group);
  const auto is_asleep = [](std::int64_t pid) {
    return lockstep::detail::read_process(pid).state == 'S';
  };
  if (group.rank() == 1) ::raise(SIGSTOP);
  if (group.rank() == 2) {
    while (!is_stopped(all[1]) || !is_asleep(all[0])) ::usleep(1000);
    ::kill(static_cast<pid_t>(all[0]), SIGSTOP);
    while (!is_stopped(all[0])) ::usleep(1000);
    std::this_thread::sleep_for(timeout + std::chrono::milliseconds(500));
    ::kill(static_cast<pid_t>(all[0]), SIGCONT);
    ::usleep(500'000);  // rank 0 has time to give up
    ::kill(static_cast<pid_t>(all[1]), SIGCONT);
  }
  group.barrier().wait();
}

}  // namespace lockstep::testing
