#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include "tests/random_programs/backward.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// The knowledge about each unit after the operations so far.
class Known {
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

  explicit Known(const Program& program) : program_(program) {
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
  const Program& program() const { return program_; }
  const Unit& spec(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
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

  /// Whether a rule determines the gradients that the program sees.
  bool knows_gradients(int index) const {
    return !unit(index).unnoticed && unit(index).behind == 0 && !spec(index).in_parts;
  }

  /// Whether ranks have parts of means. And whether the program may have set gradients in their
  /// place.
  bool holds_parts(int index) const { return spec(index).in_parts && unit(index).holds_mean; }
  bool has_replaced_parts(int index) const { return holds_parts(index) && unit(index).unnoticed; }

  /// Whether parameters that require a gradient have got other data, unseen by the front end.
  bool is_replaced(int index) const {
    const auto& now = unit(index);
    for (std::size_t i = 0; i < now.replaced.size(); ++i) {
      if (now.requires_grad[i] && now.replaced[i]) return true;
    }
    return false;
  }

  /// Whether the values are known that an exchange gives the buffers. A mean of unknown values is
  /// unknown. So is a batch norm's buffer of rank 0 that a step may have written: it may have taken
  /// a later forward's values for those received.
  bool knows_exchanged(int index) const {
    const bool takes_unknown =
        spec(index).buffers == Buffers::average || has_layer(spec(index), Layer::norm);
    return unit(index).buffers_known || !takes_unknown;
  }

  /// Whether a conversion has a defined result: rounding comes before or after a mean.
  bool may_convert(int index) const {
    return between_steps(index) && !spec(index).shared && knows_exchanged(index) &&
           !has_replaced_parts(index);
  }

  bool is_optimizer(int index) const { return spec(index).front_end == FrontEnd::optimizer; }
  bool is_fp32(int index) const { return spec(index).synchronisation.kind == Kind::fp32; }
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

 private:
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
    now.exchanged = false;
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
    } else if (now.buffers_may_differ && (is_fp32(op.unit) || !now.local)) {
      now.buffers_known = false;  // without a local gradient there need be no exchange
    } else if (now.buffers_received) {
      now.buffers_known = knows_received;
    }
    now.buffers_received = false;
    now.holds_mean = !spec(op.unit).in_parts;
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

  /// Kept gradients change with those that are not determined.
  void follow_kept(int index) {
    auto& now = state(index);
    if (now.kept_attached && (now.unnoticed || now.behind != 0)) now.kept_known = false;
  }

  UnitState& state(int index) { return units_[static_cast<std::size_t>(index)]; }

  const Program& program_;
  std::vector<UnitState> units_;
  bool ended_ = false;
};

}  // namespace lockstep::random_programs
