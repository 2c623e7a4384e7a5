#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "tests/random_programs/backward.h"
#include "tests/random_programs/known.h"
#include "tests/random_programs/program.h"
#include "tests/random_programs/refusals.h"

namespace lockstep::random_programs {

/// Says which operation may come next. One is legal when semantics define its result, or that every
/// rank refuses it. On devices, front ends notice no gradient of which one element was changed, or
/// that was clipped while it differed between ranks, and NCCL allows one order of collectives only.
class Rules : public Known {
  using Kind = Synchronisation::Kind;

 public:
  using Known::Known;

  /// Whether the units themselves are legal.
  bool allow_units() const {
    return !program().on_device || std::ranges::none_of(program().units, &Unit::own_group);
  }

  bool allow(const Operation& operation) const {
    if (ended()) return false;
    return std::visit([this](const auto& op) { return allow(op); }, operation);
  }

 private:
  bool allow(const Backward& op) const {
    const auto units = units_of(op);
    int synchronised = 0;
    for (const int index : units) {
      // Values that the rules do not know must not enter a mean.
      const auto& weights = op.weights.empty() ? unit(index).weights : op.weights;
      const bool some_zero = std::ranges::find(weights, 0) != weights.end();
      const bool uneven = op.without_loss != 0 && spec(index).buffers == Buffers::average;
      if ((uneven || some_zero) && !unit(index).buffers_known) return false;
      if (!may_run(index)) return false;
      if (has_layer(spec(index), Layer::seen) && overwrites_saved_buffer(op, index)) return false;
      if (has(op.local, index)) {
        if (!may_accumulate(index)) return false;
        if (starts_from_zero(index) && unit(index).holds_mean) return false;
      } else {
        ++synchronised;
        if (!allow_synchronised(index, op)) return false;
      }
    }
    if (anyone_behind()) {
      // Ranks that are ahead wait in an exchange of that unit: nothing else may come before its
      // step.
      const Mask behind = unit(units[0]).behind;
      if (units.size() != 1 || behind == 0 || behind != op.without_loss) return false;
    }
    // Under no_sync() a rank without a loss has nothing to do with the others.
    if (op.without_loss != 0 && synchronised != 0 && units.size() != 1) return false;
    if (op.update) {
      const bool once = !op.twice && !op.separate;
      if (units.size() != 1 || synchronised != 1 || !is_optimizer(units[0]) || !once) return false;
      // An update that ranks share joins no backward of other ranks.
      if (spec(units[0]).shared && anyone_behind()) return false;
    }
    if (op.separate && op.paths.size() < 2) return false;
    if (op.forwards_first && (!op.separate || op.swapped >= 0)) return false;
    if (op.collective != Collective::none) {
      // Ranks take part with the same graph, so that all exchanges have one order.
      const bool alike = std::ranges::count(op.layers, op.layers[0]) == program().ranks;
      if (!alike || op.paths.size() != 1 || op.without_loss != 0) return false;
    }
    if (several_in_one_backward(op) && program().on_device) return false;
    if (op.swapped < 0) return true;
    const auto exchanges_in_world = [&](int index) {
      return !spec(index).own_group &&
             (!is_optimizer(index) || (any_reaches(index, op) && !is_replaced(index)));
    };
    return !program().on_device && op.paths.size() > 1 && !paths_meet(op) &&
           synchronised == static_cast<int>(units.size()) &&
           std::all_of(units.begin(), units.end(), exchanges_in_world);
  }

  bool allow_synchronised(int index, const Backward& op) const {
    const auto& now = unit(index);
    const bool once = !op.twice && !(op.separate && paths_meet(op));
    const bool weighted = !op.weights.empty() || !now.weights.empty();
    if (!op.weights.empty() && !may_weigh(index, op.weights)) return false;
    if (!is_fp32(index)) {
      if (now.exchanged || !once) return false;
      if (starts_from_zero(index) && now.holds_mean) return false;
    }
    if (weighted && !once) return false;
    if (!is_optimizer(index)) return op.without_loss == 0;
    // A DistributedOptimizer learns of a loss by the gradients only: in a backward that reaches it
    // on some ranks only, the others are in effect without a loss.
    if (any_reaches(index, op) && !all_reach(index, op)) return false;
    if (op.without_loss != 0) {
      if (!any_reaches(index, op)) return false;
      // Ranks with a loss exchange more often before the step than those without.
      if (!once && spec(index).buffers == Buffers::average) return false;
      if (now.behind != 0) {
        const bool skips = now.behind == op.without_loss && is_fp32(index) &&
                           spec(index).buffers != Buffers::average;
        if (!skips || weighted || op.twice) return false;
      } else if (now.exchanged && !is_fp32(index)) {
        return false;
      }
    } else if (now.behind != 0) {
      return false;
    }
    if (!weighted) return true;
    return any_reaches(index, op) && !now.unnoticed && !is_replaced(index);
  }

  bool allow(const ZeroGrad& op) const {
    if (op.by == ZeroGrad::By::front_end && !is_optimizer(op.unit)) return false;
    // Gradients may be local. Where some ranks have none, zero is not the same as none.
    if ((starts_from_zero(op.unit) || spec(op.unit).in_parts) && !op.set_to_none) return false;
    // Only the front end discards the parts, and not those of a rank that has yet to join.
    const bool discards = op.by == ZeroGrad::By::front_end && unit(op.unit).behind == 0;
    if (holds_parts(op.unit) && !discards) return false;
    return is_fp32(op.unit) || between_steps(op.unit);
  }

  bool allow(const Step& op) const {
    const auto& now = unit(op.unit);
    if (anyone_behind() && now.behind == 0) return false;
    if (!is_optimizer(op.unit)) return !now.changed && op.weights.empty();
    if (starts_from_zero(op.unit) && now.holds_mean && !now.exchanged) return false;
    // Without an exchange, no gradients would have the weights.
    const bool exchanges = now.local && !is_replaced(op.unit) && now.behind == 0;
    if (op.weights.empty() && now.weights.empty()) return true;
    // A change that another exchange may have averaged would count with the weights of either.
    return exchanges && !now.unnoticed && (op.weights.empty() || may_weigh(op.unit, op.weights));
  }

  bool allow(const Clip& op) const {
    const auto& now = unit(op.unit);
    if (now.unnoticed || now.behind != 0 || spec(op.unit).in_parts) return false;
    if (spec(op.unit).synchronisation.kind == Kind::partial_gradients) return false;
    // By gradients that differ, each rank scales what was averaged by a factor of its own.
    return !now.changed || !is_fp32(op.unit) || (is_optimizer(op.unit) && !program().on_device);
  }

  bool allow(const SetGradient& op) const {
    const auto& now = unit(op.unit);
    if (op.how == SetGradient::How::poke && program().on_device) return false;
    if (!is_optimizer(op.unit) || !is_fp32(op.unit) || now.behind != 0 || !now.weights.empty())
      return false;
    if (op.how == SetGradient::How::compute && !may_run(op.unit)) return false;
    for (std::size_t i = 0; i < now.trainable.size(); ++i) {
      const bool usable = now.trainable[i] && now.requires_grad[i];
      if (has(op.parameters, static_cast<int>(i)) && !usable) return false;
    }
    // The gradients of the other ranks must be known, and so must the values before an addition.
    const bool assigned = op.how == SetGradient::How::assign || op.how == SetGradient::How::compute;
    // No change in place reaches the parts. A front end takes what is set before it has looked at
    // other data of the parameters for the gradient of a backward.
    if (holds_parts(op.unit) && (!assigned || is_replaced(op.unit))) return false;
    return !now.unnoticed || (assigned && op.ranks == first_bits(program().ranks));
  }

  bool allow(const Keep& op) const {
    const auto& now = unit(op.unit);
    // An exchange moves other gradients into a bucket, and handles keep what was there before.
    return now.exchanged && !now.changed && knows_gradients(op.unit) && !now.outside;
  }

  bool allow(const Weigh& op) const {
    if (anyone_behind()) return false;
    if (is_optimizer(op.unit) && (unit(op.unit).unnoticed || is_replaced(op.unit))) return false;
    return may_weigh(op.unit, op.weights);
  }

  bool allow(const Freeze& op) const {
    const auto& now = unit(op.unit);
    const auto parameter = static_cast<std::size_t>(op.parameter);
    if (!between_steps(op.unit) || now.requires_grad[parameter] != op.frozen) return false;
    return op.frozen || now.trainable[parameter];
  }

  bool allow(const Save& op) const {
    return unit(op.unit).behind == 0 && unit(op.unit).buffers_known;
  }

  bool allow(const Load& op) const {
    return unit(op.unit).saved && between_steps(op.unit) && !spec(op.unit).shared &&
           !has_replaced_parts(op.unit);
  }

  bool allow(const Convert& op) const { return may_convert(op.unit); }
  bool allow(const SaveCheckpoint& op) const {
    return !anyone_behind() && between_steps(op.unit) && unit(op.unit).buffers_known;
  }

  bool allow(const LoadCheckpoint& op) const {
    return unit(op.unit).has_checkpoint && !anyone_behind() && between_steps(op.unit);
  }

  bool allow(const Synchronize& op) const {
    return is_optimizer(op.unit) && !anyone_behind() && between_steps(op.unit);
  }

  bool allow(const Rewrap& op) const {
    const auto& now = unit(op.unit);
    if (anyone_behind() || !between_steps(op.unit) || holds_parts(op.unit)) return false;
    if (!knows_exchanged(op.unit)) return false;
    // A batch norm changes its buffer without a change of the version, so it is not known whether
    // what was received still waits.
    if (now.buffers_received && now.buffers_may_differ) return false;
    // A shared update leaves out what was frozen before, even if it has a gradient. Of a frozen
    // parameter that had parts, the optimizer has no whole state.
    const bool in_parts = spec(op.unit).shared || spec(op.unit).sharded;
    if (in_parts && now.requires_grad != now.trainable) return false;
    // torch::load() gives parameters that a wrapper had moved together one memory, which shard
    // refuses.
    if (spec(op.unit).sharded && now.saved) return false;
    const bool any = std::ranges::count(now.requires_grad, true) > 0;
    if (!any || !now.changed) return any;
    // The new wrapper has not seen how the gradients came to be.
    return std::ranges::count(now.requires_grad, false) == 0 && is_optimizer(op.unit);
  }

  bool allow(const Evaluate& op) const { return !anyone_behind() && may_run(op.unit); }
  bool allow(const Refuse& op) const { return !anyone_behind() && allow_refusal(*this, op); }
};

/// The program of a seed: the same everywhere. on_device: as Program::on_device.
Program generate(std::uint64_t seed, bool on_device);

/// Whether each operation is legal after those before it, and the program may end after the last.
inline bool is_legal(const Program& program) {
  Rules rules(program);
  if (!rules.allow_units()) return false;
  for (const auto& operation : program.operations) {
    if (!rules.allow(operation)) return false;
    rules.apply(operation);
  }
  return !rules.anyone_behind();
}

}  // namespace lockstep::random_programs
