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

/// State that one group's collectives on this rank share. They advance strictly in their order.
struct Progress {
  std::uint64_t next_step = 0;  ///< steps of all planned collectives; members count them alike
  std::uint64_t planned = 0;    ///< collectives whose steps are counted
  /// For each place of the ring: the count of worked steps at which its last collective is over.
  std::array<std::uint64_t, Block::ring> over_at{};
  /// The least that each member was seen to have published; the truth may be more.
  std::vector<std::uint64_t> arrived;
  std::vector<std::uint64_t> worked;
};

/// A collective on this rank. Note [How a host collective runs] is in host_collective_request.cpp.
class CollectiveRequest final : public HostRequest {
 public:
  CollectiveRequest(HostCommunicator& group, Operation&& operation);

  /// Announces it to the members, once the ring has a free entry; true if announced.
  bool post();
  bool posted() const { return stage_ != Stage::queued; }
  /// The next collective may begin: this rank's share is done, and its chunks are free.
  bool lets_next_begin() const {
    return complete() || (stage_ == Stage::finishing && path_ != Path::staged);
  }

  void advance() override;
  std::vector<int> missing() const override;

 private:
  enum class Stage { queued, posted, stepping, finishing };
  enum class Path {
    slots,   ///< inputs came with the announcements: no further meeting
    direct,  ///< all inputs lie in the arena: one step over the whole
    staged   ///< some input is outside: copied through the arena chunk by chunk
  };

  bool all_posted() const;
  bool all_reached(std::vector<std::uint64_t>& seen, Counter& (Block::*counter)(int) const,
                   std::uint64_t value) const;
  bool agree();
  void plan();
  void arrive(std::uint64_t step);
  bool step();

  void copy_in(std::uint64_t step);
  void work(std::uint64_t step);
  void copy_out(std::uint64_t step);
  void reduce(std::uint64_t step);
  void pull(int source, int part, std::byte* output, std::uint64_t step);
  /// Every input to this rank's output.
  void pull_all(std::uint64_t step);
  static bool reaches(std::span<const std::uint64_t> offsets);
  /// This rank's input to all members' outputs.
  void push(std::uint64_t step);
  /// This rank's share of the root's buffer to all members.
  void spread(std::uint64_t step);

  /// Where this step's piece of a source's part can be read.
  std::byte* piece(int source, int part, std::uint64_t step) const;
  detail::Range range(int source, int part, std::uint64_t step) const;
  detail::Range my_segment(detail::Range piece) const;

  detail::Shape shape_;
  Stage stage_ = Stage::queued;
  Path path_ = Path::slots;
  std::vector<std::uint64_t> offsets_;  ///< of each member's input, or no_offset
  std::vector<std::uint64_t> outputs_;  ///< the same of the outputs
  std::size_t piece_elements_ = 0;      ///< of one part in one step
  std::uint64_t first_step_ = 0;
  std::uint64_t steps_ = 1;
  std::uint64_t step_ = 0;
  bool step_worked_ = false;
};

}  // namespace lockstep::host
