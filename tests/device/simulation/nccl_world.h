#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::simulation::nccl {

constexpr int most_ranks = 32;
constexpr int most_orders = 32;

enum class Operation : int {
  all_reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  reduce,
  send,
  recv
};

/// How many operations a rank had issued on a communicator.
struct Issued {
  std::uint64_t communicator;
  std::uint64_t operations;
};

/// The arguments of one rank's collective. Ranks compare them, and find each other's memory by
/// them.
struct Announcement {
  Operation operation;
  std::uint64_t count;
  int dtype, op, root;
  std::uint64_t in;  // offset in the rank's device memory
  int order_count;
  Issued orders[most_orders];  // on other communicators, before this collective
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
  std::uint64_t count;
  int dtype;
  std::uint64_t in;
};
struct Member {
  std::atomic<int> has_joined;
  pid_t process;
  int device;
  int arena;  // descriptor of the process
  std::uint64_t host;
};

/// The state that the ranks of a communicator share. Zeros are the initial state. It has no lock: a
/// process that is killed leaves its peers waiting, as with NCCL, and they can still abort.
struct World {
  std::atomic<int> size;
  std::atomic<int> joined;
  std::atomic<int> ended;  // called ncclCommDestroy or ncclCommAbort
  Member members[most_ranks];
  Slot slots[most_ranks];
  Message messages[most_ranks][most_ranks];  // from, to
};

/// Maps the named object, which the first rank makes.
std::shared_ptr<World> open_world(const std::string& name);
/// Removes the name. The object lives as long as a rank maps it.
void remove_name(const std::string& name);

/// Whether a member's process has ended, or is about to.
bool has_ended(const Member& member);

/// A member's device memory, for reading. Null if its process is gone.
const std::byte* memory_of(const Member& member);

}  // namespace lockstep::simulation::nccl
