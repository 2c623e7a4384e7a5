#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host/collective_steps.h"
#include "comm/host/host_request.h"
#include "comm/host/world/block.h"
#include "comm/host/world/count_table.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::host {

using Progress = BasicProgress<Block::ring>;

/// A collective on this rank. Note [How a host collective runs] is in host_collective_request.cpp.
class CollectiveRequest final : public HostRequest {
 public:
  CollectiveRequest(HostCommunicator& group, Operation&& operation);

  /// Announces the collective to the members, if the ring has a free entry. True if announced.
  bool announce();
  bool announced() const { return steps_.announced(); }
  /// Whether the next collective may begin.
  bool next_may_begin() const { return complete() || steps_.next_may_begin(); }

  void advance() override;
  /// Wakes the other members.
  void wake();
  std::vector<int> missing() const override;

 private:
  friend class CollectiveSteps<Block>;  // calls the functions up to copy_out()
  void write_announcement(AnnouncementEntry& entry);
  bool compare_announcements();
  CollectivePlan plan();
  void copy_in(std::uint64_t step);
  void work(std::uint64_t step);
  void copy_out(std::uint64_t step);

  /// Populates the first bytes of this rank's slot or chunk, of which `populated` already are.
  /// Throws: the world's failure, as which this rank records a shortage of memory.
  void populate(std::byte* part, std::size_t bytes, std::size_t& populated);

  /// Bytes before the input in the eager slot: those of the CountTable, if there is one.
  const Operation& counted() const;
  std::size_t eager_begin() const;
  CountTable counts_of(int member) const;
  /// Compares the counts of an all_to_all with those of the other members. False: the world has
  /// failed.
  bool compare_counts();
  /// The error text about members that differ, as `what` says.
  std::string text_of(std::string_view what) const;

  /// Whether each member reduces its own segment of the buffer.
  bool reduces_by_segments() const {
    return operation().collective == Collective::all_reduce ||
           operation().collective == Collective::reduce;
  }
  /// Whether the member's buffer gets the result of the reduction.
  bool has_result(int member) const {
    return operation().collective != Collective::reduce || member == operation().peer;
  }
  void move(std::uint64_t step);
  void reduce(std::uint64_t step);
  /// Copies a piece of a member's input to this rank's output. whole: bytes of a long copy that
  /// includes the piece and bypasses the caches; 0 for none.
  void pull(int source, int part, std::byte* output, std::uint64_t step, std::size_t whole = 0);
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
  CollectiveSteps<Block> steps_;
  std::vector<std::uint64_t> offsets_;  ///< of each member's input in the arena, or no_offset
  std::vector<std::uint64_t> outputs_;  ///< the same for the outputs
  std::size_t piece_elements_ = 0;      ///< elements of one part in one step
};

}  // namespace lockstep::host
