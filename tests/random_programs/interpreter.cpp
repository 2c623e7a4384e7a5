#include <torch/torch.h>

#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "core/text.h"
#include "lockstep/checkpoint.h"
#include "lockstep/differentiable.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "lockstep/fused_optimizers.h"
#include "lockstep/strategy.h"
#include "tests/random_programs/rank.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;

std::vector<at::Tensor> parameters_of(const Model& model) { return lockstep::parameters(model); }

/// Either front end.
struct Wrapper {
  std::function<at::Tensor(const at::Tensor& x, Mask layers)> forward;
  std::function<NoSync()> no_sync;
  std::function<void(double samples)> weight;
  std::function<Stateful()> stateful;
  DistributedOptimizer* optimizer = nullptr;
};

template <class Wrapped>
Wrapper wrapper_of(const std::shared_ptr<Wrapped>& front_end, decltype(Wrapper::forward) forward) {
  return {.forward = std::move(forward),
          .no_sync = [front_end] { return front_end->no_sync(); },
          .weight = [front_end](double samples) { front_end->weight(samples); },
          .stateful = [front_end]() -> Stateful { return *front_end; }};
}

/// Whether the ranks of this group share one copy of the unit's parameters.
bool is_shared(const Unit& unit, const Group& group) {
  return unit.shared && group.device().is_cpu();
}

Wrapper wrap(const Unit& unit, const Rank::Holding& holding, const Group& group) {
  DataParallelOptions options;
  options.strategy = parse_strategy(unit.synchronisation.text());
  options.verify_every = unit.verify_every;
  options.check_finite = unit.check_finite;
  options.share_memory = is_shared(unit, group);
  if (unit.sharded && group.device().is_cpu())
    options.shard = unit.in_parts ? Shard::gradients : Shard::optimizer;
  if (unit.bucket_each) options.buckets = {.first = 0, .rest = 0};
  if (unit.buffers == Buffers::average) options.buffer_policy = BufferPolicy::average;
  if (unit.buffers == Buffers::own) options.buffer_policy = BufferPolicy::none;
  if (unit.front_end == FrontEnd::optimizer) {
    const auto optimizer =
        std::make_shared<DistributedOptimizer>(*holding.optimizer, *holding.model, group, options);
    auto wrapper = wrapper_of(optimizer, [model = holding.model](const at::Tensor& x, Mask layers) {
      return model->compute(x, layers);
    });
    wrapper.optimizer = optimizer.get();
    return wrapper;
  }
  return for_output(unit.output, [&]<Output output>() {
    using Returns = Returning<output>;
    const auto ddp = std::make_shared<DistributedDataParallel<Returns>>(
        std::dynamic_pointer_cast<Returns>(holding.model), group, options);
    return wrapper_of(
        ddp, [ddp](const at::Tensor& x, Mask layers) { return tensor_in((*ddp)(x, layers)); });
  });
}

/// A FusedSgd instead of an SGD, or a FusedAdam instead of an Adam.
void fuse(std::unique_ptr<torch::optim::Optimizer>& optimizer) {
  const auto& defaults = optimizer->defaults();
  const auto parameters = optimizer->param_groups()[0].params();
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&defaults)) {
    optimizer = std::make_unique<FusedSgd>(parameters, *sgd);
  } else {
    const auto& adam = dynamic_cast<const torch::optim::AdamOptions&>(defaults);
    optimizer = std::make_unique<FusedAdam>(parameters, adam);
  }
}

class Interpreter {
 public:
  Interpreter(const Program& program, const Group& world, std::filesystem::path folder)
      : program_(program),
        world_(world),
        folder_(std::move(folder)),
        rank_(program, world.rank(), parameters_of, world.device()) {
    for (std::size_t i = 0; i < program.units.size(); ++i) {
      groups_.push_back(program.units[i].own_group ? world.split(0) : world);
      const auto index = static_cast<int>(i);
      // Half of the shared copies are updated by LibTorch's own step.
      if (is_shared(program.units[i], world) && program.units[i].bucket_each)
        fuse(rank_[index].optimizer);
      wrappers_.push_back(wrap(program.units[i], rank_[index], groups_[i]));
    }
  }

  void run(const Operation& operation) {
    std::visit([this](const auto& op) { run(op); }, operation);
  }
  std::vector<Values> observe() {
    std::vector<Values> all;
    for (auto& item : rank_.observe()) all.push_back(std::move(item.values));
    return all;
  }

 private:
  const Unit& unit(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  Wrapper& wrapper(int index) { return wrappers_[static_cast<std::size_t>(index)]; }
  const Group& group(int index) const { return groups_[static_cast<std::size_t>(index)]; }

  Rank::Forward forward() {
    return [this](int index, const at::Tensor& x, Mask layers) {
      return wrapper(index).forward(x, layers);
    };
  }

  void weigh(int index, const std::vector<double>& weights) {
    if (!weights.empty()) wrapper(index).weight(weights[static_cast<std::size_t>(world_.rank())]);
  }

  void run(const Backward& op) {
    std::vector<NoSync> local;
    for (const int index : units_of(op)) {
      if (has(op.local, index)) {
        local.push_back(wrapper(index).no_sync());
      } else {
        weigh(index, op.weights);
      }
    }
    const auto combined = [this](Collective collective, const at::Tensor& y) {
      return combine(collective, y);
    };
    if (!op.update) {
      return rank_.run(
          op, forward(), [](const at::Tensor& loss) { loss.backward(); }, combined);
    }
    auto* optimizer = wrapper(op.paths[0][0]).optimizer;
    const auto update = [&](const at::Tensor& loss) { optimizer->backward_and_update(loss); };
    rank_.run(op, forward(), update, combined);
    if (has(op.without_loss, world_.rank())) update({});
  }

  at::Tensor combine(Collective collective, const at::Tensor& y) {
    // A group of its own: the wrappers' collectives come in between.
    if (!collectives_) collectives_ = world_.split(0);
    switch (collective) {
      case Collective::none:
        return y;
      case Collective::all_reduce:
        return differentiable::all_reduce(y, *collectives_);
      case Collective::mean:
        return differentiable::all_reduce(y, *collectives_, ReduceOp::avg);
      case Collective::all_gather:
        return differentiable::all_gather(y, *collectives_);
      case Collective::reduce_scatter:
        return differentiable::reduce_scatter(y, *collectives_);
      case Collective::broadcast:
        return differentiable::broadcast(y, *collectives_, world_.size() - 1);
    }
    return {};
  }

  void run(const Weigh& op) { weigh(op.unit, op.weights); }

  void run(const Step& op) {
    weigh(op.unit, op.weights);
    auto* optimizer = wrapper(op.unit).optimizer;
    optimizer != nullptr ? optimizer->step() : void(rank_[op.unit].optimizer->step());
  }

  void run(const ZeroGrad& op) {
    if (op.by != ZeroGrad::By::front_end) return rank_.run(op);
    wrapper(op.unit).optimizer->zero_grad(op.set_to_none);
  }

  Checkpoint checkpoint(int index) {
    return {.model = *rank_[index].model,
            .optimizer = *rank_[index].optimizer,
            .strategy = wrapper(index).stateful()};
  }
  std::filesystem::path file(int index) const { return folder_ / concat("unit", index); }

  void run(const SaveCheckpoint& op) {
    checkpoint(op.unit).save(file(op.unit), {}, group(op.unit));
  }
  void run(const LoadCheckpoint& op) { checkpoint(op.unit).load(file(op.unit), group(op.unit)); }

  void run(const Synchronize& op) { wrapper(op.unit).optimizer->synchronize(); }

  void run(const Rewrap& op) {
    wrapper(op.unit) = {};
    wrapper(op.unit) = wrap(unit(op.unit), rank_[op.unit], group(op.unit));
  }

  void run(const Evaluate& op) { rank_.run(op, forward()); }

  void run(const Refuse& op) {
    using What = Refuse::What;
    auto& holding = rank_[op.unit];
    switch (op.what) {
      case What::negative_weight:
      case What::second_weight: {
        const bool second = op.what == What::second_weight;
        if (second) wrapper(op.unit).weight(1);
        wrapper(op.unit).weight(world_.rank() != op.number ? 1 : second ? 2 : -1);
        const Restore restore([&] { holding.model->zero_grad(); });
        return run(whole_backward(program_, op.unit));
      }
      case What::not_finite: {
        const Restore restore([&] { holding.model->zero_grad(); });
        const double factor =
            world_.rank() == op.number ? std::numeric_limits<double>::quiet_NaN() : 1;
        rank_.run(whole_backward(program_, op.unit), forward(),
                  [&](const at::Tensor& loss) { (loss * factor).backward(); }, {});
        // Raises the error where the strategy exchanges no gradients in the backward.
        if (auto* optimizer = wrapper(op.unit).optimizer) optimizer->step();
        return;
      }
      case What::wrapped_twice:
        return void(wrap(unit(op.unit), holding, group(op.unit)));
      case What::thawed: {
        auto parameter = holding.model->unique_parameters()[static_cast<std::size_t>(op.number)];
        parameter.set_requires_grad(true);
        const Restore restore([&] { parameter.set_requires_grad(false); });
        return use(op.unit);
      }
      case What::other_dtype: {
        const auto dtype = holding.model->dtype();
        holding.model->to(dtype == at::kDouble ? at::kFloat : at::kDouble);
        const Restore restore([&] { holding.model->to(dtype); });
        return use(op.unit);
      }
      case What::other_layout: {
        torch::nn::Linear other(7, 7);
        const auto path = folder_ / "other";
        if (world_.rank() == 0) Checkpoint{.model = *other}.save(path);
        return void(checkpoint(op.unit).load(path, group(op.unit)));
      }
      case What::opaque: {
        const Unit other{.front_end = FrontEnd::data_parallel,
                         .synchronisation = {},
                         .layers = {Layer::scale},
                         .output = Output::opaque};
        const Rank::Holding holds{
            .model = std::make_shared<Returning<Output::opaque>>(other, program_.width, 1),
            .optimizer = nullptr};
        holds.model->to(world_.device());
        const auto x = at::ones({1, program_.width}, at::kDouble).to(world_.device());
        return void(wrap(other, holds, group(op.unit)).forward(x, 1));
      }
      case What::listed_twice: {
        auto other = unit(op.unit);
        other.front_end = FrontEnd::optimizer;
        const auto model = std::make_shared<Model>(other, program_.width, 1);
        model->to(world_.device());
        auto parameters = model->unique_parameters();
        parameters.push_back(parameters[static_cast<std::size_t>(op.number)]);
        const Rank::Holding holds{
            .model = model, .optimizer = std::make_unique<torch::optim::SGD>(parameters, 0.1)};
        return void(wrap(other, holds, group(op.unit)));
      }
      case What::in_place: {
        holding.model->eval();
        const Restore restore([&] { holding.model->train(); });
        const auto x = at::ones({1, program_.width}, holding.model->dtype());
        const auto y = rank_.compute(op.unit, x.to(world_.device()).requires_grad_(), ~0U);
        world_.all_reduce(y).wait();
        return y.sum().backward();
      }
    }
  }

  class Restore {
   public:
    explicit Restore(std::function<void()> fn) : fn_(std::move(fn)) {}
    ~Restore() { fn_(); }
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;

   private:
    std::function<void()> fn_;
  };

  /// The call in which a front end looks at the model's parameters.
  void use(int index) {
    if (auto* optimizer = wrapper(index).optimizer) return optimizer->step();
    const auto& model = *rank_[index].model;
    const auto dtype = model.unique_parameters()[0].scalar_type();
    wrapper(index).forward(at::ones({1, program_.width}, dtype).to(world_.device()), ~0U);
  }

  /// Operations without communication.
  template <class Op>
  void run(const Op& op) {
    rank_.run(op);
  }

  const Program& program_;
  Group world_;
  std::filesystem::path folder_;
  Rank rank_;
  std::vector<Group> groups_;
  std::optional<Group> collectives_;
  std::vector<Wrapper> wrappers_;
};

std::string type_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return name(own->kind());
  return dynamic_cast<const c10::Error*>(&error) != nullptr ? "c10::Error" : "exception";
}

}  // namespace

Log interpret(const Program& program, const Group& world, const std::filesystem::path& folder) {
  Log log;
  try {
    Interpreter interpreter(program, world, folder);
    for (const auto& operation : program.operations) {
      Outcome outcome;
      try {
        interpreter.run(operation);
      } catch (const std::exception& error) {
        outcome.error = type_of(error);
        outcome.text = error.what();
      }
      const bool asked_for = std::holds_alternative<Refuse>(operation);
      if (outcome.error.empty() || asked_for) outcome.values = interpreter.observe();
      log.push_back(std::move(outcome));
      if (!log.back().error.empty() && !asked_for) break;
    }
  } catch (const std::exception& error) {
    log.push_back({.error = type_of(error), .text = error.what()});
  }
  return log;
}

}  // namespace lockstep::random_programs
