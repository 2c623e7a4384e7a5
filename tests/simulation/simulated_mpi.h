#pragma once

#include <cstddef>

#include "tests/simulation/simulated_kernel.h"

namespace lockstep::testing {

/// A message that has arrived at a process.
struct SimulatedMessage {
  int from;
  int tag;
  std::vector<std::byte> data = {};
  std::size_t bytes = 0;
  std::uint64_t request = 0;  ///< the sender's, if the sender waits for the receiver; else 0
};

class SimulatedMpiJob;

/// The MPI library of one process: what has arrived from other processes.
struct SimulatedMpi {
  SimulatedMpiJob& job;
  std::deque<SimulatedMessage> arrived = {};
  std::vector<std::uint64_t> granted = {};  ///< own sends whose receivers have asked for the data
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> data = {};  ///< by own receives
  std::uint64_t last_request = 0;
};

/// The processes that mpirun has started.
class SimulatedMpiJob {
 public:
  SimulatedMpiJob(SimulatedKernel& kernel, std::size_t eager_bytes)
      : kernel_(kernel), eager_bytes_(eager_bytes) {}

  void add(SimulatedProcess& process);
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank_of(const SimulatedProcess& process) const;
  SimulatedProcess& process(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  std::size_t eager_bytes() const { return eager_bytes_; }

  /// Delivers something from one rank to another. Two ranks have one connection, so the order of
  /// sending is the order of arrival.
  void send(int from, int to, std::function<void(SimulatedMpi&)> deliver);

 private:
  SimulatedKernel& kernel_;
  std::size_t eager_bytes_;
  std::vector<SimulatedProcess*> ranks_;
  std::map<std::pair<int, int>, std::shared_ptr<Pipe>> pipes_;
};

}  // namespace lockstep::testing
