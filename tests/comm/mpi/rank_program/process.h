#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "comm/control/joining.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/mpi/mpi.h"
#include "comm/tcp/tcp.h"
#include "core/environment.h"
#include "tests/message_of.h"

namespace lockstep::testing {

using namespace std::chrono_literals;
using Group = std::shared_ptr<Communicator>;

// A process of the program: its arguments, and how it joins its world and tells what it met.

inline float floats[64];
inline double doubles[64];
inline std::string_view argument;
inline std::string hosts;

inline void say(const std::string& line) { std::cout << line + '\n' << std::flush; }

/// Returns once the test has opened the fifo that the argument names.
inline void await_release() {
  const int fd = ::open(std::string(argument).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("cannot open the fifo");
  ::close(fd);
}

/// A number of MPI's launcher, OpenMPI's or Hydra's.
inline int of_launcher(const char* of_openmpi, const char* of_hydra) {
  const char* number = std::getenv(of_openmpi);
  return std::stoi(number != nullptr ? number : std::getenv(of_hydra));
}
/// This process's rank.
inline std::size_t own_number() {
  return static_cast<std::size_t>(of_launcher("OMPI_COMM_WORLD_RANK", "PMI_RANK"));
}

/// Whether ranks exchange messages without MPI: over TCP, or over UCX with
/// LOCKSTEP_TRANSPORT=ucx.
inline bool without_mpi() {
  const char* network = std::getenv("LOCKSTEP_TEST_NETWORK");
  return network != nullptr && network != std::string_view("mpi");
}

/// The world of all processes that MPI's launcher has started.
inline Group create_flat(messages::Options options) {
  if (!without_mpi()) return mpi::create(options);
  options.transport = Environment::get().transport;
  const char* master = std::getenv("MASTER_ADDR");
  const auto port = static_cast<std::uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  const control::Token token{};
  return tcp::create(
      options, {.rank = static_cast<int>(own_number()),
                .size = of_launcher("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
                .port = port,
                .token = token,
                .find = control::offer_at(master != nullptr ? master : "127.0.0.1", port, token)});
}

inline Group create_on_hosts(const messages::Options& options) {
  const host::Options inside{.timeout = options.timeout};
  if (!without_mpi()) return hierarchical::create_over_mpi(options, inside);
  return hierarchical::create(
      {.make_network_world = create_flat, .network = options, .inside = inside});
}

/// With letters for hosts, of ranks that are said to be on those.
inline Group join(messages::Options options = {.timeout = 20s}) {
  options.progress = Environment::get().progress;
  if (hosts.empty()) return create_flat(options);
  options.host = hosts.substr(own_number(), 1);
  options.interface = Environment::get().interface;
  return create_on_hosts(options);
}

/// Says what fn threw and stays, so that the launcher does not end those who are still to speak.
inline int expect_failure(const Group& group, const std::function<void()>& fn) {
  try {
    fn();
    say("rank " + std::to_string(group->rank()) + " noticed nothing");
  } catch (const Error& error) {
    say((dynamic_cast<const TimeoutError*>(&error) != nullptr ? "TimeoutError " : "Error ") +
        std::string(error.what()) + " {" + fields_of(error) + '}');
  }
  await_release();
  return 1;
}

/// The hosts are as they are.
inline Group join_as_found() {
  const auto& environment = Environment::get();
  return create_on_hosts(
      {.timeout = 60s, .progress = environment.progress, .heartbeat = environment.heartbeat});
}

}  // namespace lockstep::testing
