#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/host/world/arena.h"
#include "core/failure.h"

namespace lockstep::inline v0_2::host {

/// Largest number of ranks of a host world.
inline constexpr int max_ranks = 512;

using detail::Failure;

/// The default size of each rank's heap: the memory that a rank can share with the others.
struct HeapSize {
  std::size_t bytes;
  std::string bound;  ///< "limited by …", and what raises it
};
/// For a world of so many ranks that this process creates: the least of the machine's memory, the
/// limit of its control groups, a rank's part of twice that or of 1 TiB, and its part of half of
/// the address space that is free.
HeapSize heap_size(int ranks);

/// The shared memory of the ranks of one host, including the status of each rank. It is a sparse
/// memfd without a name in any file system: only a process that has the descriptor can use it. Most
/// of Arena is for the backend.
class World : public Arena {
 public:
  /// Creates a world of `size` ranks. Each rank can allocate heap_bytes of shared memory; 0: as
  /// heap_size().
  /// Throws: InvalidArgument for a size outside 1 … max_ranks. CommError if the memory cannot be
  /// created.
  static std::shared_ptr<World> create(int size, std::size_t heap_bytes = 0);

  /// The world of an inherited descriptor. Takes ownership of the descriptor and sets
  /// close-on-exec.
  /// Throws: CommError if it is not a Lockstep world of this version and size.
  static std::shared_ptr<World> attach(int fd, int size);

  /// Records the failure that ends the world, unless there is one already, and wakes every waiting
  /// rank. elsewhere: the world rank at fault, if it is on another host; else -1. Any thread.
  void fail(const Failure& failure, int elsewhere = -1) noexcept {
    fail(failure.kind, failure.rank, elsewhere, failure.text);
  }
  /// The same. Async-signal-safe.
  void fail(Failure::Kind kind, int rank, int elsewhere, std::string_view text) noexcept;
  /// The failure that ended the world. If the rank at fault has recorded an error, that error.
  std::optional<Failure> failure() const;
  /// The world rank at fault, if it is on another host; else -1.
  int failed_elsewhere() const;

  /// Records the error by which a rank ends, before the rank leaves. The world does not fail by
  /// this; other ranks fail when they wait for the rank. Only the first error of a rank explains a
  /// failure, and none that was only raised or that is itself the world's failure. world_rank: the
  /// number of the rank in texts.
  void record_error(int rank, const detail::ErrorRecord& record, int world_rank) noexcept;
  /// The error that the rank has recorded last.
  std::optional<detail::ErrorRecord> error_of(int rank) const;

  /// Records that the rank's process has ended; how is "exit code 0", "SIGKILL", … Ranks that wait
  /// for it fail with both in the error text. If the rank has failed, the caller also calls fail().
  void mark_ended(int rank, std::string_view how) noexcept;
  /// Records that a rank leaves the world; how is "" if it leaves without an error.
  void leave(int rank, std::string_view how) noexcept;
  /// How the rank left or its process ended; "" if it runs, or left without an error.
  std::string_view end_text(int rank) const;
  /// Whether the rank has joined the world by init(), also if it has left since.
  bool joined(int rank) const;
  /// Whether the rank has left the world.
  bool left(int rank) const;
  /// Whether the rank has left the world or ended, without an error.
  bool left_well(int rank) const;
  /// Records that the rank raises the world's failure.
  void set_raised_failure(int rank) noexcept;
  /// Whether the rank has raised the world's failure.
  bool raised_failure(int rank) const;

 private:
  using Arena::Arena;
};

}  // namespace lockstep::host
