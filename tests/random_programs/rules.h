#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// Whether some unit is passed by more than one path.
inline bool paths_meet(const Backward& op) {
  std::size_t passed = 0;
  for (const auto& path : op.paths) passed += path.size();
  return passed > units_of(op).size();
}

/// Whether one backward exchanges gradients of several units.
inline bool several_in_one_backward(const Backward& op) {
  int most = 0;
  int all = 0;
  for (const auto& path : op.paths) {
    int synchronised = 0;
    for (const int unit : path) synchronised += has(op.local, unit) ? 0 : 1;
    most = std::max(most, synchronised);
  }
  for (const int unit : units_of(op)) all += has(op.local, unit) ? 0 : 1;
  return (op.separate ? most : all) > 1;
}

/// Whether a forward changes a buffer that the graph of an earlier one still needs.
inline bool overwrites_saved_buffer(const Backward& op, int index) {
  if (op.separate && !op.forwards_first) return false;
  bool passed = false;
  for (std::size_t number = 0; number < op.paths.size(); ++number) {
    if (std::ranges::find(op.paths[number], index) == op.paths[number].end()) continue;
    if (passed && !has(op.evaluated, static_cast<int>(number))) return true;
    passed = true;
  }
  return false;
}

inline Mask layers_of(const Backward& op, int rank, int unit) {
  return op.layers[static_cast<std::size_t>(rank)][static_cast<std::size_t>(unit)];
}

/// Says which operation may come next, and what is known of each unit before and after it. An
/// operation is legal when semantics define its result, or that every rank refuses it. On devices,
/// front ends notice no gradient of which one element was changed, or that was clipped while it
/// differed between ranks, and NCCL allows one order of collectives only.
class Rules {
  using Kind = Synchronisation::Kind;

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

  explicit Rules(const Program& program) : program_(program) {
    for (const auto& unit : program.units) {
      UnitState state;
      const auto count = static_cast<std::size_t>(parameter_count(unit));
      state.requires_grad.assign(count, true);
      if (unit.frozen >= 0) state.requires_grad[static_cast<std::size_t>(unit.frozen)] = false;
      state.trainable = state.requires_grad;
      state.replaced.assign(count, false);
      units_.push_back(std::move(state));
    }
  }

  /// Whether the units themselves are legal.
  bool allow_units() const {
    return !program_.on_device || std::ranges::none_of(program_.units, &Unit::own_group);
  }

  bool allow(const Operation& operation) const {
    if (ended_) return false;
    return std::visit([this](const auto& op) { return allow(op); }, operation);
  }

  /// The operation has run.
  void apply(const Operation& operation) {
    std::visit([this](const auto& op) { apply(op); }, operation);
    for (std::size_t i = 0; i < units_.size(); ++i) follow_kept(static_cast<int>(i));
  }

  /// Whether a rank waits for another: the program may not end here.
  bool anyone_behind() const {
    return std::any_of(units_.begin(), units_.end(), [](const auto& u) { return u.behind != 0; });
  }

  /// No further operation is legal: ranks may no longer agree, or their world has failed.
  bool ended() const { return ended_; }
  const UnitState& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  /// Whether a loss of these layers gives the unit a gradient.
  bool reaches(int index, Mask layers) const {
    const Mask parameters = parameters_of(spec(index), layers);
    for (std::size_t i = 0; i < unit(index).requires_grad.size(); ++i) {
      if (has(parameters, static_cast<int>(i)) && unit(index).requires_grad[i]) return true;
    }
    return false;
  }

  /// Whether a backward gives the unit gradients on some rank, and on all that have a loss.
  bool any_reaches(int index, const Backward& op) const {
    for (int rank = 0; rank < program_.ranks; ++rank) {
      if (!has(op.without_loss, rank) && reaches(index, layers_of(op, rank, index))) return true;
    }
    return false;
  }

  bool all_reach(int index, const Backward& op) const {
    for (int rank = 0; rank < program_.ranks; ++rank) {
      if (!has(op.without_loss, rank) && !reaches(index, layers_of(op, rank, index))) return false;
    }
    return true;
  }

  /// Whether parameters that require a gradient have got other data, unseen by the front end.
  bool is_replaced(int index) const {
    const auto& now = unit(index);
    for (std::size_t i = 0; i < now.replaced.size(); ++i) {
      if (now.requires_grad[i] && now.replaced[i]) return true;
    }
    return false;
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
      const bool alike = std::ranges::count(op.layers, op.layers[0]) == program_.ranks;
      if (!alike || op.paths.size() != 1 || op.without_loss != 0) return false;
    }
    if (several_in_one_backward(op) && program_.on_device) return false;
    if (op.swapped < 0) return true;
    const auto exchanges_in_world = [&](int index) {
      return !spec(index).own_group &&
             (!is_optimizer(index) || (any_reaches(index, op) && !is_replaced(index)));
    };
    return !program_.on_device && op.paths.size() > 1 && !paths_meet(op) &&
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

  bool allow_conversion(int index) const {
    // Rounding comes before or after a mean.
    return between_steps(index) && !spec(index).shared && knows_exchanged(index);
  }

  /// Whether the values are known that an exchange gives the buffers. A mean of unknown values is
  /// unknown. So is a batch norm's buffer of rank 0 that a step may have written: it may have taken
  /// a later forward's values for those received.
  bool knows_exchanged(int index) const {
    const bool takes_unknown =
        spec(index).buffers == Buffers::average || has_layer(spec(index), Layer::norm);
    return unit(index).buffers_known || !takes_unknown;
  }

  bool allow(const ZeroGrad& op) const {
    if (op.by == ZeroGrad::By::front_end && !is_optimizer(op.unit)) return false;
    // Gradients may be local. Where some ranks have none, zero is not the same as none.
    if (starts_from_zero(op.unit) && !op.set_to_none) return false;
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
    if (now.unnoticed || now.behind != 0) return false;
    if (spec(op.unit).synchronisation.kind == Kind::partial_gradients) return false;
    // By gradients that differ, each rank scales what was averaged by a factor of its own.
    return !now.changed || !is_fp32(op.unit) || (is_optimizer(op.unit) && !program_.on_device);
  }

  bool allow(const SetGradient& op) const {
    const auto& now = unit(op.unit);
    if (op.how == SetGradient::How::poke && program_.on_device) return false;
    if (!is_optimizer(op.unit) || !is_fp32(op.unit) || now.behind != 0 || !now.weights.empty())
      return false;
    if (op.how == SetGradient::How::compute && !may_run(op.unit)) return false;
    for (std::size_t i = 0; i < now.trainable.size(); ++i) {
      const bool usable = now.trainable[i] && now.requires_grad[i];
      if (has(op.parameters, static_cast<int>(i)) && !usable) return false;
    }
    // The gradients of the other ranks must be known, and so must the values before an addition.
    const bool assigned = op.how == SetGradient::How::assign || op.how == SetGradient::How::compute;
    return !now.unnoticed || (assigned && op.ranks == first_bits(program_.ranks));
  }

  bool allow(const Keep& op) const {
    const auto& now = unit(op.unit);
    // An exchange moves other gradients into a bucket, and handles keep what was there before.
    return now.exchanged && !now.changed && !now.unnoticed && now.behind == 0 && !now.outside;
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
    return unit(op.unit).saved && between_steps(op.unit) && !spec(op.unit).shared;
  }

  bool allow(const Convert& op) const { return allow_conversion(op.unit); }
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
    if (anyone_behind() || !between_steps(op.unit)) return false;
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
  bool allow(const Refuse& op) const {
    using What = Refuse::What;
    const auto& now = unit(op.unit);
    if (anyone_behind() || !between_steps(op.unit)) return false;
    switch (op.what) {
      case What::second_weight:
      case What::negative_weight:
        return is_fp32(op.unit) && !is_replaced(op.unit) && reaches(op.unit, ~0U) &&
               may_run(op.unit);
      case What::wrapped_twice:
        return !is_replaced(op.unit);
      case What::thawed:
        return !now.trainable[static_cast<std::size_t>(op.number)];
      case What::other_dtype:
        return allow_conversion(op.unit);
      case What::not_finite:
        if (!spec(op.unit).check_finite || (starts_from_zero(op.unit) && now.holds_mean))
          return false;
        return !is_replaced(op.unit) && reaches(op.unit, ~0U) && may_run(op.unit);
      case What::other_layout:
      case What::opaque:
      case What::listed_twice:
      case What::in_place:
        return true;
    }
    return false;
  }

  void apply(const Backward& op) {
    for (const int index : units_of(op)) {
      auto& now = state(index);
      if (op.without_loss != first_bits(program_.ranks)) now.buffers_may_differ = true;
      if (!is_optimizer(index)) notice(index);
      if (!has(op.local, index)) {
        apply_synchronised(index, op);
      } else if (any_reaches(index, op)) {
        now.changed = now.local = true;
        // Other strategies need not exchange, and so move, anything in the next backward.
        now.outside = now.outside || !is_fp32(index);
      }
    }
    if (op.update) {
      const int index = op.paths[0][0];
      follow_kept(index);
      // The gradients that there were are not averaged, or a part of them is.
      if (spec(index).shared || spec(index).sharded) {
        state(index).kept_known = state(index).kept_known && !state(index).kept_attached;
      }
      apply(Step{.unit = index});
      // Where ranks share the update, none need have seen the means.
      if (spec(index).shared) state(index).changed = state(index).unnoticed = true;
      apply(ZeroGrad{.unit = index, .by = ZeroGrad::By::optimizer, .set_to_none = true});
    }
    if (op.swapped >= 0) ended_ = true;
  }

  void apply_synchronised(int index, const Backward& op) {
    auto& now = state(index);
    now.weights.clear();
    if (!is_optimizer(index)) {
      now.changed = now.local = false;
      now.exchanged = now.holds_mean = true;
      now.buffers_may_differ = false;
      now.buffers_known = true;
      return;
    }
    if (!any_reaches(index, op)) return;
    if (is_replaced(index)) {
      // Whether this backward is noticed already is the front end's choice.
      now.behind = op.without_loss;
      now.changed = now.unnoticed = now.holds_mean = true;
      now.exchanged = now.exchanged || !is_fp32(index);
      now.local = now.buffers_known = false;
      return;
    }
    now.behind = op.without_loss;
    now.exchanged = now.holds_mean = true;
    now.changed = now.unnoticed;
    now.local = false;
    // Other strategies need not exchange anything in this step.
    now.buffers_received = is_fp32(index);
    if (now.behind != 0) now.buffers_known = false;
    if (!is_fp32(index)) return;
    now.buffers_may_differ = false;
  }

  void apply(const ZeroGrad& op) {
    auto& now = state(op.unit);
    now.local = false;
    now.dropped = now.behind != 0;
    const bool all = op.by == ZeroGrad::By::module || spec(op.unit).all_parameters;
    if (!all) return;
    now.holds_mean = false;
    if (op.set_to_none) now.changed = now.unnoticed = now.kept_attached = now.outside = false;
  }

  void apply(const Step& op) {
    auto& now = state(op.unit);
    const bool exchanged = std::exchange(now.exchanged, false);
    if (!is_optimizer(op.unit)) return;
    now.weights.clear();
    const bool knows_received = knows_exchanged(op.unit);
    if (now.local && is_fp32(op.unit)) {
      now.buffers_known = knows_received;
      now.buffers_may_differ = false;
    } else if (now.behind != 0) {
      // Otherwise no front end need have noticed the exchange.
      const bool exchanges = is_fp32(op.unit) && !now.dropped;
      now.buffers_known = exchanges || !is_replaced(op.unit);
    } else if (now.buffers_may_differ && (is_fp32(op.unit) || !(now.local || exchanged))) {
      now.buffers_known = false;  // without a local gradient there need be no exchange
    } else if (now.buffers_received) {
      now.buffers_known = knows_received;
    }
    now.buffers_received = false;
    now.holds_mean = true;
    // Where ranks share the update, gradients that it has averaged stay local.
    now.changed = now.unnoticed = spec(op.unit).shared && now.changed;
    notice(op.unit);
    now.local = now.dropped = false;
    now.behind = 0;
  }

  void apply(const Clip& op) {
    if (unit(op.unit).changed) state(op.unit).unnoticed = true;
  }

  void apply(const SetGradient& op) {
    auto& now = state(op.unit);
    now.changed = now.unnoticed = true;
    if (op.how == SetGradient::How::compute) now.buffers_may_differ = true;
  }

  void apply(const Keep& op) { state(op.unit).kept_attached = state(op.unit).kept_known = true; }

  void apply(const Weigh& op) { state(op.unit).weights = op.weights; }
  void apply(const Freeze& op) {
    state(op.unit).requires_grad[static_cast<std::size_t>(op.parameter)] = !op.frozen;
  }

  void apply(const Save& op) { state(op.unit).saved = true; }
  void apply(const Load& op) {
    replace(op.unit);
    state(op.unit).buffers_known = state(op.unit).buffers_may_differ = true;
  }

  void apply(const Convert& op) { replace(op.unit); }
  void apply(const SaveCheckpoint& op) { state(op.unit).has_checkpoint = true; }
  void apply(const LoadCheckpoint& op) { state(op.unit).buffers_known = true; }
  void apply(const Synchronize&) {}
  void apply(const Rewrap& op) {
    auto& now = state(op.unit);
    now.trainable = now.requires_grad;
    notice(op.unit);
    now.exchanged = now.local = false;
    now.unnoticed = now.changed;
    now.kept_known = now.kept_known && !now.kept_attached;
    now.outside = true;
    now.buffers_known = true;  // rank 0's was, where it is not a mean
    now.buffers_may_differ = false;
  }

  void apply(const Evaluate& op) {
    if (!op.with_graph) return;
    auto& now = state(op.unit);
    now.buffers_may_differ = true;
    if (!is_optimizer(op.unit)) notice(op.unit);
  }

  void apply(const Refuse& op) {
    auto& now = state(op.unit);
    if (is_about_a_backward(op.what)) {
      now.kept_known = now.kept_known && !now.kept_attached;
      apply(ZeroGrad{.unit = op.unit, .by = ZeroGrad::By::module, .set_to_none = true});
      now.buffers_known = false;
      now.buffers_may_differ = true;
    }
    if (op.what == Refuse::What::other_dtype) replace(op.unit);
  }

  /// The unit's parameters have got other data.
  void replace(int index) {
    // Its step does not write what it received for the data of before.
    if (unit(index).buffers_received) state(index).buffers_may_differ = true;
    auto& replaced = state(index).replaced;
    replaced.assign(replaced.size(), true);
  }

  /// The front end looks at those parameters that require a gradient.
  void notice(int index) {
    auto& now = state(index);
    for (std::size_t i = 0; i < now.replaced.size(); ++i) {
      if (now.requires_grad[i]) now.replaced[i] = false;
    }
  }

  const Unit& spec(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  UnitState& state(int index) { return units_[static_cast<std::size_t>(index)]; }
  bool is_optimizer(int index) const { return spec(index).front_end == FrontEnd::optimizer; }
  bool is_fp32(int index) const { return spec(index).synchronisation.kind == Kind::fp32; }
  bool is_lossy(int index) const { return spec(index).synchronisation.kind == Kind::lossy; }
  /// Whether the strategy averages some gradients, or a part of them: steps and backwards after an
  /// exchange then need zero_grad() first.
  bool starts_from_zero(int index) const {
    const auto kind = spec(index).synchronisation.kind;
    return kind == Kind::lossy || kind == Kind::partial_gradients || kind == Kind::post_local_sgd;
  }

  /// Whether no gradients wait for a step, under a strategy that takes regular steps only.
  bool may_accumulate(int index) const {
    return unit(index).behind == 0 && (is_fp32(index) || !unit(index).exchanged);
  }

  /// Whether nothing of the unit waits for an exchange or a step.
  bool between_steps(int index) const {
    return may_accumulate(index) && unit(index).weights.empty();
  }

  /// Whether a forward may run: its output is determined.
  bool may_run(int index) const { return unit(index).buffers_known || !uses_buffer(spec(index)); }

  /// Whether the next exchange can have these weights.
  bool may_weigh(int index, const std::vector<double>& weights) const {
    const auto& before = unit(index).weights;
    return is_fp32(index) && (before.empty() || before == weights);
  }

  /// Kept gradients change with those that are not determined.
  void follow_kept(int index) {
    auto& now = state(index);
    if (now.kept_attached && (now.unnoticed || now.behind != 0)) now.kept_known = false;
  }

  const Program& program_;
  std::vector<UnitState> units_;
  bool ended_ = false;
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
