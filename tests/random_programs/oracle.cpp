#include <torch/torch.h>

#include <numeric>
#include <sstream>
#include <utility>

#include "tests/random_programs/known.h"
#include "tests/random_programs/rank.h"
#include "tests/random_programs/refusals.h"

namespace lockstep::random_programs {
namespace {

using Kind = Synchronisation::Kind;

class Oracle {
 public:
  explicit Oracle(const Program& program)
      : program_(program), known_(program), units_(program.units.size()) {
    for (int rank = 0; rank < program.ranks; ++rank)
      ranks_.push_back(std::make_unique<Rank>(
          program, rank, [](const Model& model) { return model.unique_parameters(); }));
    for (std::size_t i = 0; i < units_.size(); ++i) wrap(static_cast<int>(i));
  }

  std::vector<Expected> run() {
    std::vector<Expected> all;
    for (const auto& operation : program_.operations) {
      Expected expected;
      std::visit([&](const auto& op) { run(op, expected); }, operation);
      known_.apply(operation);
      describe(expected);
      all.push_back(std::move(expected));
    }
    return all;
  }

 private:
  struct Checkpoint {
    std::vector<at::Tensor> model;        ///< rank 0's
    std::vector<std::string> optimizers;  ///< of each rank, by torch::save
    int steps;
  };
  /// A rank's buffer that a DistributedOptimizer writes in its step, unless it was changed since.
  struct Received {
    at::Tensor value;
    c10::Storage memory;
    std::int64_t version;
  };
  struct UnitState {
    int steps = 0;  ///< exchanges, of which regular strategies have one a step
    std::optional<Checkpoint> checkpoint = {};
    std::vector<Received> received = {};  ///< of each rank
    std::vector<double> weights = {};     ///< of this step's last exchange in a backward
  };

  const Unit& unit(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  UnitState& state(int index) { return units_[static_cast<std::size_t>(index)]; }
  bool is_optimizer(int index) const { return unit(index).front_end == FrontEnd::optimizer; }
  Kind kind(int index) const { return unit(index).synchronisation.kind; }
  bool replicas_may_differ(int index) const {
    return kind(index) != Kind::fp32 &&
           (kind(index) != Kind::lossy || unit(index).synchronisation.lossy == "adasum");
  }
  std::size_t parameters(int index) { return all(index, 0).size(); }
  const std::vector<at::Tensor>& all(int index, std::size_t rank) {
    return (*ranks_[rank])[index].model->unique_parameters();
  }

  /// A parameter on each rank.
  std::vector<at::Tensor> of_ranks(int index, std::size_t number) {
    std::vector<at::Tensor> values;
    for (auto& rank : ranks_) values.push_back((*rank)[index].model->unique_parameters()[number]);
    return values;
  }

  /// Each rank's tensor = their mean, weighted.
  void average(std::vector<at::Tensor> tensors, std::vector<double> weights) {
    const torch::NoGradGuard no_grad;
    if (weights.empty()) weights.assign(tensors.size(), 1);
    auto sum = at::zeros_like(tensors[0]);
    for (std::size_t rank = 0; rank < tensors.size(); ++rank)
      if (weights[rank] != 0) sum += tensors[rank] * weights[rank];
    sum /= std::accumulate(weights.begin(), weights.end(), 0.0);
    for (auto& tensor : tensors) tensor.copy_(sum);
  }

  /// weights: of this exchange; empty for those that have been set before, if any.
  void average_gradient(int index, std::size_t number, std::vector<double> weights) {
    const auto parameters = of_ranks(index, number);
    if (weights.empty()) weights = known_.unit(index).weights;
    weights.resize(parameters.size(), 1);
    bool counts = false;  // a rank of weight 0 alone gives a parameter no gradient
    for (std::size_t rank = 0; rank < parameters.size(); ++rank)
      counts = counts || (weights[rank] != 0 && parameters[rank].grad().defined());
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) {
      auto& gradient = parameter.mutable_grad();
      if (!counts || !gradient.defined())
        gradient = counts ? at::zeros_like(parameter) : at::Tensor();
      gradients.push_back(gradient);
    }
    if (counts) average(gradients, weights);
  }

  /// weights: as average_gradient(). A rank of weight 0 does not count.
  void synchronise_buffers(int index, const std::vector<double>& weights = {}) {
    const auto policy = unit(index).buffers;
    if (policy == Buffers::absent || policy == Buffers::own) return;
    std::vector<at::Tensor> buffers;
    for (auto& rank : ranks_) buffers.push_back((*rank)[index].model->buffer());
    std::vector<at::Tensor> values;
    for (const auto& buffer : buffers) values.push_back(buffer.clone());
    auto counts = weights.empty() ? known_.unit(index).weights : weights;
    counts.resize(values.size(), 1);
    for (auto& count : counts) count = count > 0 ? 1 : 0;
    if (policy == Buffers::average) {
      average(values, counts);
    } else {
      const auto root = std::ranges::find(counts, 1) - counts.begin();
      const auto of_root = values[static_cast<std::size_t>(root)].clone();
      for (auto& value : values) value.copy_(of_root);
    }
    auto& received = state(index).received = {};
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      received.push_back({.value = values[rank],
                          .memory = buffers[rank].storage(),
                          .version = buffers[rank]._version()});
    if (!is_optimizer(index)) write_buffers(index);
  }

  void write_buffers(int index) {
    const torch::NoGradGuard no_grad;
    for (std::size_t rank = 0; rank < state(index).received.size(); ++rank) {
      const auto& [value, memory, version] = state(index).received[rank];
      auto buffer = (*ranks_[rank])[index].model->buffer();
      if (memory.is_alias_of(buffer.storage()) && version == buffer._version()) buffer.copy_(value);
    }
    state(index).received.clear();
  }

  /// The parameters in the order of their buckets, those that required gradients when wrapped.
  std::vector<std::size_t> in_buckets(int index) {
    std::vector<std::size_t> order;
    for (std::size_t i = parameters(index); i-- > 0;) {
      if (known_.unit(index).trainable[i]) order.push_back(i);
    }
    return order;
  }

  /// Of in_buckets(), those whose turn it is.
  std::vector<std::size_t> in_turn(int index) {
    const auto order = in_buckets(index);
    if (!unit(index).bucket_each) return order;
    return {order[static_cast<std::size_t>(state(index).steps) % order.size()]};
  }

  /// Which gradients, and which parameters, the strategy averages in the current step.
  std::vector<std::size_t> gradients_of_step(int index) {
    const auto& how = unit(index).synchronisation;
    switch (how.kind) {
      case Kind::fp32:
      case Kind::lossy:
        return in_buckets(index);
      case Kind::post_local_sgd:
        if (state(index).steps < how.start) return in_buckets(index);
        return {};
      case Kind::partial_gradients:
        return in_turn(index);
      case Kind::local_sgd:
      case Kind::partial_parameters:
        return {};
    }
    return {};
  }
  std::vector<std::size_t> parameters_of_step(int index) {
    const auto& how = unit(index).synchronisation;
    const int steps = state(index).steps - (how.kind == Kind::post_local_sgd ? how.start : 0);
    switch (how.kind) {
      case Kind::local_sgd:
      case Kind::post_local_sgd:
        if (steps >= 0 && (steps + 1) % how.period == 0) return in_buckets(index);
        return {};
      case Kind::partial_parameters:
        return in_turn(index);
      default:
        return {};
    }
  }

  void exchange(int index, const std::vector<double>& weights) {
    const auto gradients = gradients_of_step(index);
    for (const auto number : gradients) average_gradient(index, number, weights);
    if (gradients.empty()) return;
    auto last = weights.empty() ? known_.unit(index).weights : weights;
    last.resize(ranks_.size(), 1);
    synchronise_buffers(index, last);
    // Until its step, a DistributedOptimizer does not notice a backward to replaced parameters.
    if (!known_.is_replaced(index)) state(index).weights = last;
  }

  /// All ranks take rank 0's parameters and buffers.
  void wrap(int index) {
    write_buffers(index);
    const torch::NoGradGuard no_grad;
    for (auto& rank : ranks_) {
      for (std::size_t i = 0; i < parameters(index); ++i)
        (*rank)[index].model->unique_parameters()[i].copy_(all(index, 0)[i]);
      const auto& buffer = (*rank)[index].model->buffer();
      if (buffer.defined()) buffer.copy_((*ranks_[0])[index].model->buffer());
    }
    state(index).steps = 0;
  }

  static void run_backward(const at::Tensor& loss) { loss.backward(); }

  /// Each rank's backward, without an exchange.
  void run_alone(const Backward& op) {
    if (op.collective != Collective::none) return run_in_one_graph(op, ranks_);
    for (auto& rank : ranks_) rank->run(op, rank->own_forward(), run_backward, {});
  }

  void exchange(const std::vector<int>& units, const Backward& op) {
    for (const int index : units) {
      if (has(op.local, index)) continue;
      if (!is_optimizer(index) || known_.any_reaches(index, op)) exchange(index, op.weights);
    }
  }

  void run(const Backward& op, Expected& expected) {
    if (op.separate && !op.forwards_first) {
      for (std::size_t number = 0; number < op.paths.size(); ++number) {
        for (auto& rank : ranks_) rank->run_path(number, op, rank->own_forward(), run_backward);
        exchange(op.paths[number], op);
      }
    } else {
      run_alone(op);
      exchange(units_of(op), op);
    }
    if (op.update) {
      step(op.paths[0][0], {});
      for (auto& rank : ranks_) (*rank)[op.paths[0][0]].optimizer->zero_grad();
    }
    for (const int index : units_of(op)) {
      const auto& now = known_.unit(index);
      if (has(op.local, index) || now.behind == 0 || !now.dropped) continue;
      // A mean that is dropped where it was seen, and still there where it was not.
      expected.error = "invalid_argument";
      expected.mentions = "call step() before zero_grad()";
      expected.may_fail = expected.ends = true;
      expected.later = op.update ? 0 : op.without_loss;
    }
    if (op.swapped >= 0) {
      expected.error = "any";
      expected.mentions = "use wrappers in the same order on all ranks";
      expected.ends = true;
      expected.may_fail = !op.separate;
    }
  }

  void run(const Step& op, Expected&) { step(op.unit, op.weights); }

  void step(int index, const std::vector<double>& weights) {
    if (is_optimizer(index)) {
      // Gradients that are means already stay what they are.
      const auto gradients = gradients_of_step(index);
      for (const auto number : gradients) average_gradient(index, number, weights);
      const bool any = std::ranges::any_of(
          gradients, [&](std::size_t number) { return all(index, 0)[number].grad().defined(); });
      const auto& now = known_.unit(index);
      const bool first = kind(index) != Kind::fp32 && !now.exchanged;
      if ((now.changed || now.behind != 0 || first) && any) {
        // A rank that is only behind takes part in the exchange of the backward.
        const auto& set = weights.empty() ? now.weights : weights;
        synchronise_buffers(index, set.empty() ? state(index).weights : set);
      }
    }
    for (auto& rank : ranks_) rank->step(index);
    if (!is_optimizer(index)) return;
    const auto averaged = parameters_of_step(index);
    for (const auto number : averaged) average(of_ranks(index, number), {});
    if (!averaged.empty()) synchronise_buffers(index);
    write_buffers(index);
    state(index).weights.clear();
    ++state(index).steps;
  }

  void run(const SaveCheckpoint& op, Expected&) {
    Checkpoint saved{.model = {}, .optimizers = {}, .steps = state(op.unit).steps};
    for (const auto& parameter : all(op.unit, 0)) saved.model.push_back(parameter.detach().clone());
    const auto& buffer = (*ranks_[0])[op.unit].model->buffer();
    if (buffer.defined()) saved.model.push_back(buffer.clone());
    for (auto& rank : ranks_) {
      auto& from = replicas_may_differ(op.unit) ? *rank : *ranks_[0];
      std::ostringstream out;
      torch::save(*from[op.unit].optimizer, out);
      saved.optimizers.push_back(out.str());
    }
    state(op.unit).checkpoint = std::move(saved);
  }

  void run(const LoadCheckpoint& op, Expected&) {
    const torch::NoGradGuard no_grad;
    const auto& saved = *state(op.unit).checkpoint;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      auto& holding = (*ranks_[rank])[op.unit];
      for (std::size_t i = 0; i < parameters(op.unit); ++i) {
        all(op.unit, rank)[i].copy_(saved.model[i]);
      }
      if (holding.model->buffer().defined()) holding.model->buffer().copy_(saved.model.back());
      std::istringstream in(saved.optimizers[rank]);
      holding.optimizer->state().clear();
      torch::load(*holding.optimizer, in);
    }
    state(op.unit).steps = saved.steps;
  }

  void run(const Synchronize& op, Expected&) {
    if (!replicas_may_differ(op.unit)) return;
    for (const auto number : in_buckets(op.unit)) average(of_ranks(op.unit, number), {});
    synchronise_buffers(op.unit);
    write_buffers(op.unit);
  }

  void run(const Rewrap& op, Expected&) {
    wrap(op.unit);
    state(op.unit).weights.clear();
  }

  void run(const Evaluate& op, Expected&) {
    for (auto& rank : ranks_) rank->run(op, rank->own_forward());
  }

  void run(const Refuse& op, Expected& expected) {
    using What = Refuse::What;
    expected.error = op.what == What::other_layout ? "checkpoint" : "invalid_argument";
    expected.mentions = said_of(known_, op);
    if (is_about_a_backward(op.what)) {
      run_alone(whole_backward(program_, op.unit));
      for (auto& rank : ranks_) (*rank)[op.unit].model->zero_grad();
    } else if (op.what == What::other_dtype) {
      for (auto& rank : ranks_) rank->run(Convert{.unit = op.unit});
    }
  }

  void run(const Weigh&, Expected&) {}

  /// Operations without communication.
  template <class Op>
  void run(const Op& op, Expected&) {
    for (auto& rank : ranks_) rank->run(op);
  }

  Check check_of(const Item& item) const {
    using enum Item::Kind;
    const auto& now = known_.unit(item.unit);
    const bool is_lossy = kind(item.unit) == Kind::lossy;
    const bool is_known = known_.knows_gradients(item.unit);
    switch (item.kind) {
      case loss:
        return is_lossy ? Check::none : Check::exact;
      case parameter:
        return is_lossy ? Check::same : Check::exact;
      case gradient:
        if (!is_lossy) return is_known ? Check::exact : Check::none;
        return is_known && !now.changed && !replicas_may_differ(item.unit) ? Check::same
                                                                           : Check::none;
      case buffer:
        return now.buffers_known && !is_lossy ? Check::exact : Check::none;
      case kept_gradient:
        return now.kept_known && !is_lossy ? Check::exact : Check::none;
    }
    return Check::none;
  }

  void describe(Expected& expected) {
    for (auto& rank : ranks_) {
      const bool is_first = expected.values.empty();
      auto& values = expected.values.emplace_back();
      for (auto& item : rank->observe()) {
        values.push_back(std::move(item.values));
        if (!is_first) continue;
        expected.names.push_back(item.name);
        const bool was_refused = item.kind == Item::Kind::loss && !expected.error.empty();
        expected.checks.push_back(was_refused ? Check::none : check_of(item));
      }
    }
  }

  const Program& program_;
  Known known_;
  std::vector<UnitState> units_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

std::vector<Expected> expect(const Program& program) { return Oracle(program).run(); }

}  // namespace lockstep::random_programs
