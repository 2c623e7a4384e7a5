#pragma once

#include <cstdint>
#include <vector>

#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// Says which operation may come next, and what is known of each unit before and after it. An
/// operation is legal when semantics define its result, or that every rank refuses it. On devices,
/// front ends notice no gradient of which one element was changed, or that was clipped while it
/// differed between ranks, and NCCL allows one order of collectives only.
class Rules {
 public:
  struct UnitState {
    std::vector<bool> requires_grad;  ///< of each parameter, now
    std::vector<bool> trainable;      ///< the same when the model was wrapped
    bool saved = false;               ///< by torch::save
    bool has_checkpoint = false;
    bool changed = false;        ///< some rank's gradients, since the last exchange
    bool unnoticed = false;      ///< and only step() need notice: until then they may be averaged
    bool local = false;          ///< and a backward has changed them: step() must average them
    bool exchanged = false;      ///< a backward has averaged gradients since the last step
    bool holds_mean = false;     ///< gradients are those of an exchange, and zero_grad has not come
    std::vector<bool> replaced;  ///< its data, and the front end has not looked at it since
    Mask behind = 0;             ///< ranks without a loss in an exchange that others have begun
    bool dropped = false;        ///< zero_grad has come since that exchange
    bool buffers_known = true;
    bool buffers_may_differ = false;   ///< between ranks
    bool buffers_received = false;     ///< which the step writes unless they change before
    std::vector<double> weights = {};  ///< that the next exchange will use
    bool kept_attached = false;        ///< kept handles are of the gradients that there are
    bool kept_known = false;           ///< the values of kept handles are determined
    bool outside = false;              ///< gradients may lie in no bucket of the wrapper
  };

  explicit Rules(const Program& program);

  /// Whether the units themselves are legal.
  bool allow_units() const;
  bool allow(const Operation& operation) const;
  /// The operation has run.
  void apply(const Operation& operation);

  /// Whether a rank waits for another: the program may not end here.
  bool anyone_behind() const;
  /// No further operation is legal: ranks may no longer agree, or their world has failed.
  bool ended() const { return ended_; }
  const UnitState& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  /// Whether a loss of these layers gives the unit a gradient.
  bool reaches(int index, Mask layers) const;
  /// Whether a backward gives the unit gradients on some rank, and on all that have a loss.
  bool any_reaches(int index, const Backward& op) const;
  bool all_reach(int index, const Backward& op) const;
  /// Whether parameters that require a gradient have got other data, unseen by the front end.
  bool is_replaced(int index) const;

 private:
  bool allow(const Backward& op) const;
  bool allow_synchronised(int index, const Backward& op) const;
  bool allow_conversion(int index) const;
  /// Whether the values are known that an exchange gives the buffers. A mean of unknown values is
  /// unknown. So is a batch norm's buffer of rank 0 that a step may have written: it may have taken
  /// a later forward's values for those received.
  bool knows_exchanged(int index) const;
  bool allow(const ZeroGrad& op) const;
  bool allow(const Step& op) const;
  bool allow(const Clip& op) const;
  bool allow(const SetGradient& op) const;
  bool allow(const Keep& op) const;
  bool allow(const Weigh& op) const;
  bool allow(const Freeze& op) const;
  bool allow(const Save& op) const;
  bool allow(const Load& op) const;
  bool allow(const Convert& op) const;
  bool allow(const SaveCheckpoint& op) const;
  bool allow(const LoadCheckpoint& op) const;
  bool allow(const Synchronize& op) const;
  bool allow(const Rewrap& op) const;
  bool allow(const Evaluate& op) const;
  bool allow(const Refuse& op) const;

  void apply(const Backward& op);
  void apply_synchronised(int index, const Backward& op);
  void apply(const ZeroGrad& op);
  void apply(const Step& op);
  void apply(const Clip& op);
  void apply(const SetGradient& op);
  void apply(const Keep& op);
  void apply(const Weigh& op);
  void apply(const Freeze& op);
  void apply(const Save& op);
  void apply(const Load& op);
  void apply(const Convert& op);
  void apply(const SaveCheckpoint& op);
  void apply(const LoadCheckpoint& op);
  void apply(const Synchronize& op);
  void apply(const Rewrap& op);
  void apply(const Evaluate& op);
  void apply(const Refuse& op);

  /// The unit's parameters have got other data.
  void replace(int index);
  /// The front end looks at those parameters that require a gradient.
  void notice(int index);

  const Unit& spec(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  UnitState& state(int index) { return units_[static_cast<std::size_t>(index)]; }
  bool is_optimizer(int index) const { return spec(index).front_end == FrontEnd::optimizer; }
  bool is_fp32(int index) const;
  bool is_lossy(int index) const;
  /// Whether the strategy averages some gradients, or a part of them: steps and backwards after an
  /// exchange then need zero_grad() first.
  bool starts_from_zero(int index) const;
  /// Whether no gradients wait for a step, under a strategy that takes regular steps only.
  bool may_accumulate(int index) const;
  /// Whether nothing of the unit waits for an exchange or a step.
  bool between_steps(int index) const;
  /// Whether a forward may run: its output is determined.
  bool may_run(int index) const;
  /// Whether the next exchange can have these weights.
  bool may_weigh(int index, const std::vector<double>& weights) const;
  /// Kept gradients change with those that are not determined.
  void follow_kept(int index);

  const Program& program_;
  std::vector<UnitState> units_;
  bool ended_ = false;
};

/// The program of a seed: the same everywhere. on_device: as Program::on_device.
Program generate(std::uint64_t seed, bool on_device);

/// Whether each operation is legal after those before it, and the program may end after the last.
bool is_legal(const Program& program);

}  // namespace lockstep::random_programs
