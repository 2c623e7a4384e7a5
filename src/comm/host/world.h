#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/rank_failure.h"

namespace lockstep::inline v0_2::host {

class Arena;

/// Most ranks one host's world may have.
inline constexpr int max_ranks = 512;

/// Why a world ended: written once, the first cause wins.
struct Failure {
  using Kind = detail::FailureKind;
  Kind kind = Kind::error;
  int rank = -1;  ///< the rank at fault, or -1
  std::string text = {};
  int world_rank =
      -1;  ///< the rank at fault among all hosts' ranks, where it is not in this memory

  /// Whether an exception of a rank's program is the cause.
  bool by_program() const {
    const bool known = rank >= 0 || world_rank >= 0;
    return known && (kind == Kind::error || kind == Kind::abandoned);
  }
};

/// The memory that the ranks of one machine share, and the status of each rank: joined, left,
/// failed. It is one sparse memfd without a name in any file system. Only a process that is given
/// the descriptor has access.
class World {
 public:
  /// A new world of size ranks, each of which may take heap_bytes of exchangeable memory (default:
  /// the machine's memory). Throws: InvalidArgument for a size outside 1 … max_ranks, CommError
  /// when the machine refuses the memory.
  static std::shared_ptr<World> create(int size, std::size_t heap_bytes = 0);

  /// The world behind an inherited descriptor, which it takes over: no further child inherits it.
  /// Throws: CommError when it is not a Lockstep world of this version and size.
  static std::shared_ptr<World> attach(int fd, int size);

  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const;
  /// The world's descriptor, close-on-exec: to be handed to a child process that is to be a rank.
  int fd() const;

  /// Records why the world ended, unless a cause is recorded already, and wakes every waiting rank.
  /// Any thread.
  void fail(const Failure& failure) noexcept;
  /// The cause that ended the world: the recorded error of the rank at fault, where there is one.
  std::optional<Failure> failure() const;

  /// Records the error that a rank ends with, before it leaves. It fails nothing: the others fail
  /// when they miss the rank. The first error of a rank counts. origin is the rank that met it
  /// first: the rank itself, unless it repeats another's error.
  void record_error(int rank, std::string_view text, int origin) noexcept;
  bool has_recorded_error(int rank) const;

  /// Keeps a world until the process ends, or the next one is kept: its rank has left by an
  /// exception, which the program may still record.
  static void keep(std::shared_ptr<World> world) noexcept;

  /// The rank's process is gone; how is "exit code 0", "SIGKILL", … Ranks that wait for it fail,
  /// naming it and how. A rank that failed at its exit code or signal is a failure of the world at
  /// once; the caller calls fail() for that.
  void mark_gone(int rank, std::string_view how) noexcept;
  /// How a rank that is about to leave does so.
  void say_how(int rank, std::string_view how) noexcept;
  /// Whether the rank ever joined, that is, reached init().
  bool joined(int rank) const;
  /// Whether the rank has left: it takes part in nothing more.
  bool left(int rank) const;
  /// Whether the world's failure was raised in the rank.
  bool raised_failure(int rank) const;

  /// For the backend's own files.
  Arena& arena() const { return *arena_; }

 private:
  explicit World(std::unique_ptr<Arena> arena);
  std::unique_ptr<Arena> arena_;
};

}  // namespace lockstep::host
