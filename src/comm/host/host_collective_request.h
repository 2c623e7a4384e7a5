#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/host/block.h"
#include "comm/host/host_request.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::host {

/// State that all collectives of one group share on this rank. Collectives advance strictly in
/// order.
struct Progress {
  std::uint64_t next_step =
      0;  ///< number of steps of all planned collectives; the same on all members
  std::uint64_t planned = 0;  ///< number of planned collectives
  /// For each entry of the ring: the number of finished steps at which its last collective is
  /// complete.
  std::array<std::uint64_t, Block::ring> finished_at{};
  /// The last values that this rank has read of each member's counters. The counters may have
  /// increased since.
  std::vector<std::uint64_t> staged;
  std::vector<std::uint64_t> finished;
};

/// A collective on this rank. Note [How a host collective runs] is in host_collective_request.cpp.
class CollectiveRequest final : public HostRequest {
 public:
  CollectiveRequest(HostCommunicator& group, Operation&& operation);

  /// Announces the collective to the members, if the ring has a free entry. True if announced.
  bool announce();
  bool announced() const { return stage_ != Stage::queued; }
  /// Whether the next collective may begin: this rank's share is finished, and its staging chunks
  /// are free.
  bool next_may_begin() const {
    return complete() || (stage_ == Stage::finishing && path_ != Path::staged);
  }

  void advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage { queued, announced, stepping, finishing };
  enum class Path {
    eager,      ///< eager: inputs are beside the announcements; no further synchronisation
    zero_copy,  ///< zero-copy: all inputs are in the arena; one step
    staged      ///< some input is outside the arena and is copied through chunks
  };

  bool all_announced() const;
  bool all_reached(std::vector<std::uint64_t>& seen, Counter& (Block::*counter)(int) const,
                   std::uint64_t value) const;
  bool compare_announcements();
  void plan();
  void stage_input(std::uint64_t step);
  bool step();

  void copy_in(std::uint64_t step);
  void work(std::uint64_t step);
  void copy_out(std::uint64_t step);
  void reduce(std::uint64_t step);
  void pull(int source, int part, std::byte* output, std::uint64_t step);
  /// Copies all members' inputs to this rank's output.
  void pull_all(std::uint64_t step);
  static bool reaches(std::span<const std::uint64_t> offsets);
  /// Copies this rank's input to all members' outputs.
  void push(std::uint64_t step);
  /// Copies this rank's segment of the root's buffer to all members.
  void write_share_of_root(std::uint64_t step);

  /// The address of this step's piece of a source's part.
  std::byte* piece(int source, int part, std::uint64_t step) const;
  detail::Range range(int source, int part, std::uint64_t step) const;
  detail::Range my_segment(detail::Range piece) const;

  detail::Shape shape_;
  Stage stage_ = Stage::queued;
  Path path_ = Path::eager;
  std::vector<std::uint64_t> offsets_;  ///< of each member's input in the arena, or no_offset
  std::vector<std::uint64_t> outputs_;  ///< the same for the outputs
  std::size_t piece_elements_ = 0;      ///< elements of one part in one step
  std::uint64_t first_step_ = 0;
  std::uint64_t steps_ = 1;
  std::uint64_t step_ = 0;
  bool step_finished_ = false;
};

}  // namespace lockstep::host
