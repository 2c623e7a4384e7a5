#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "lockstep/comm/hierarchical/in_flight.h"

namespace lockstep::hierarchical {

/// The groups that a hierarchical group is composed of, each with an order of its own.
enum class Lane {
  down,    ///< inside the host, towards the carriers of slices
  across,  ///< between hosts, carriers of the same slice
  up,      ///< inside the host, back to all
  flat     ///< all ranks, over the network
};
inline constexpr std::size_t lanes = 4;

/// For each lane, whether an earlier operation has yet to begin there.
using Taken = std::array<bool, lanes>;

/// One operation of another group that a hierarchical one consists of.
struct Stage {
  Lane lane;
  std::function<Work()> begin;
};

/// An operation on this rank: its stages one after another. Note [How a hierarchy keeps its order]
/// is in flight.cpp.
class Flight final : public InFlight {
 public:
  Flight(HierarchicalCommunicator& group, Operation&& operation);

  /// Advances as far as lanes that are not taken allow, and takes those of the stages to come.
  void advance_unless(Taken& taken);
  /// Throws when somebody whom its stage waits for has gone.
  void check_stage() { work_.check(); }
  /// Whether a stage of it has begun and not ended.
  bool under_way() const { return work_.pending(); }
  std::size_t stages_begun() const { return next_; }
  std::size_t stages_left() const { return stages_.size() - next_ + (under_way() ? 1 : 0); }

  void advance() override {}  // its group advances it, with those before it
  std::vector<int> missing() const override;

 private:
  std::vector<Stage> stages_;
  std::size_t next_ = 0;  ///< stage to begin
  Work work_;             ///< of the stage before it
};

}  // namespace lockstep::hierarchical
