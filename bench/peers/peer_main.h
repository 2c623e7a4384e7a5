#pragma once

#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "bench/measured_library.h"
#include "bench/session.h"
#include "bench/settings.h"
#include "lockstep/error.h"

namespace lockstep::bench {

/// Defaults for operations that peers do not have.
class Peer : public Transport {
 public:
  bool sleeps_while_waiting() const override { return false; }
  std::shared_ptr<std::byte> allocate(Memory, std::size_t bytes) override {
    return own_memory(bytes);
  }
  void all_reduce(void*, std::size_t, ReduceOp, const Wire&) override {
    throw InvalidArgument(std::string(backend()) + " reduces floats as they are, got a wire");
  }
  using Transport::all_reduce;
};

/// The work of `lockstep bench` through a peer, with the same buffers, clock and checks, as JSON
/// objects. Ranks: all. Returns the program's exit code.
inline int peer_main(Transport& peer, int argc, char** argv) {
  Settings settings;
  settings.json = true;
  settings.memories = {Memory::own};
  settings.ranks = peer.size();
  std::string collective;
  CLI::App app{"The collectives of lockstep bench through a peer, as JSON objects"};
  app.add_option("collective", collective)->required();
  app.add_option("--min", settings.min_bytes)->transform(CLI::AsSizeValue(true));
  app.add_option("--max", settings.max_bytes)->transform(CLI::AsSizeValue(true));
  app.add_option("--factor", settings.factor);
  app.add_option("--repeats", settings.repeats);
  app.add_flag("--check", settings.check);
  CLI11_PARSE(app, argc, argv);
  const auto* const known = std::ranges::find(
      measured, collective, [](Collective one) { return std::string(name(one)); });
  if (known == std::end(measured)) throw std::runtime_error("unknown collective " + collective);
  settings.collective = *known;
  check(settings);
  run_session(peer, settings, std::cout);
  return 0;
}

/// The main function of a peer's program, whose P is over MPI_COMM_WORLD or begins with it.
template <class P>
int peer_program(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int result = 1;
  try {
    P peer;
    result = peer_main(peer, argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "peer: " << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return result;
}

}  // namespace lockstep::bench
