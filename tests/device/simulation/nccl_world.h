#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::simulation::nccl {

constexpr int most_ranks = 32;

enum class Operation : int {
  all_reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  reduce,
  send,
  recv
};

/// The arguments of an operation that all ranks must have in common.
struct Arguments {
  Operation operation;
  std::uint64_t count;
  int dtype, op, root;  // the root of a message is its other rank
  bool operator==(const Arguments&) const = default;
};

/// One rank's collective. Ranks compare the arguments, and find each other's memory by it.
struct Announcement {
  Arguments arguments;
  std::uint64_t in;  // offset in the memory of the rank's devices
};

/// A rank has one slot for collectives. It announces the next one when all have read the last one.
/// Numbers count from 1.
struct Slot {
  std::atomic<std::uint64_t> announced;
  std::atomic<std::uint64_t> read;
  Announcement announcement;
};
/// Of a pair of ranks.
struct Message {
  std::atomic<std::uint64_t> sent;
  std::atomic<std::uint64_t> taken;
  Arguments arguments;
  std::uint64_t in;
};
struct Member {
  pid_t process;
  int device;
  int arena;  // descriptor of the process
  std::uint64_t host;
};

/// The state that the ranks of a communicator share. Zeros are the initial state. It has no lock: a
/// process that is killed leaves its peers waiting, as with NCCL, and they can still abort.
struct World {
  pid_t maker;            // has the descriptor that ranks open
  std::atomic<int> file;  // until all have joined
  std::atomic<int> joined;
  std::atomic<int> ended;  // called ncclCommDestroy or ncclCommAbort
  Member members[most_ranks];
  Slot slots[most_ranks];
  Message messages[most_ranks][most_ranks];  // from, to
};

/// Makes a world without ranks. Returns its path, which processes of the machine can open.
std::string make_world();
std::shared_ptr<World> open_world(const std::string& path);
/// Closes the descriptor of a world that all ranks have joined, in the process that made it.
void close_descriptor(World& world);

/// Whether a member's process has ended, or is about to.
bool has_ended(const Member& member);

/// The memory of a member's devices, for reading. Null if its process is gone.
const std::byte* memory_of(const Member& member);

/// Bytes of an element, 0 for a dtype that the double does not have.
std::size_t width(int dtype);

/// The result of a collective for one rank, of what all ranks announced and the start of their
/// memory. It reduces in the order of ranks: float and double in their dtype, 16-bit floats in
/// float.
std::vector<std::byte> compute(const std::vector<const Announcement*>& ranks,
                               const std::vector<const std::byte*>& memory, int rank);

}  // namespace lockstep::simulation::nccl
