#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/hierarchical/hierarchical.h"
#include "comm/mpi/mpi.h"
#include "core/environment.h"
#include "lockstep/error.h"
#include "tests/error_fields.h"

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

/// This process's rank, as MPI's launcher says it.
inline std::size_t own_number() {
  const char* of_openmpi = std::getenv("OMPI_COMM_WORLD_RANK");
  return std::stoul(of_openmpi != nullptr ? of_openmpi : std::getenv("PMI_RANK"));
}

/// With letters for hosts, of ranks that are said to be on those.
inline Group join(mpi::Options options = {{.timeout = 20s}}) {
  options.progress = Environment::get().progress;
  if (hosts.empty()) return mpi::create(options);
  options.host = hosts.substr(own_number(), 1);
  options.interface = Environment::get().interface;
  return hierarchical::create_over_mpi(options, {.timeout = options.timeout});
}

/// Says what fn threw and stays, so that the launcher does not end those who are still to speak.
inline int expect_failure(const Group& group, const std::function<void()>& fn) {
  try {
    fn();
    say("rank " + std::to_string(group->rank()) + " noticed nothing");
  } catch (const TimeoutError& error) {
    say("TimeoutError " + std::string(error.what()) + " {" + fields_of(error) + '}');
  } catch (const Error& error) {
    say("Error " + std::string(error.what()) + " {" + fields_of(error) + '}');
  }
  await_release();
  return 1;
}

/// The hosts are as they are.
inline Group join_as_found() {
  const auto& environment = Environment::get();
  return hierarchical::create_over_mpi(
      {{.timeout = 60s, .progress = environment.progress, .heartbeat = environment.heartbeat}}, {});
}

}  // namespace lockstep::testing
