#include "tests/random_programs/interpreter.h"

#include <torch/torch.h>

#include <exception>
#include <memory>
#include <utility>

#include "core/text.h"
#include "lockstep/checkpoint.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "lockstep/fused_optimizers.h"
#include "tests/random_programs/rank.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;

/// Either front end.
class Wrapper {
 public:
  virtual ~Wrapper() = default;
  virtual at::Tensor forward(const at::Tensor& x, Mask layers) = 0;
  virtual NoSync no_sync() const = 0;
  virtual void weight(double samples) = 0;
  virtual Stateful stateful() = 0;
  virtual DistributedOptimizer* optimizer() { return nullptr; }
};

template <Output output>
class DataParallelWrapper final : public Wrapper {
 public:
  DataParallelWrapper(const Rank::Holding& holding, const Group& group,
                      const DataParallelOptions& options)
      : ddp_(std::dynamic_pointer_cast<Returning<output>>(holding.model), group, options) {}

  at::Tensor forward(const at::Tensor& x, Mask layers) override {
    return tensor_in(ddp_(x, layers));
  }
  NoSync no_sync() const override { return ddp_.no_sync(); }
  void weight(double samples) override { ddp_.weight(samples); }
  Stateful stateful() override { return ddp_; }

 private:
  DistributedDataParallel<Returning<output>> ddp_;
};

class OptimizerWrapper final : public Wrapper {
 public:
  OptimizerWrapper(const Rank::Holding& holding, const Group& group,
                   const DataParallelOptions& options)
      : model_(holding.model), optimizer_(*holding.optimizer, *holding.model, group, options) {}

  at::Tensor forward(const at::Tensor& x, Mask layers) override {
    return model_->compute(x, layers);
  }
  NoSync no_sync() const override { return optimizer_.no_sync(); }
  void weight(double samples) override { optimizer_.weight(samples); }
  Stateful stateful() override { return optimizer_; }
  DistributedOptimizer* optimizer() override { return &optimizer_; }

 private:
  std::shared_ptr<Model> model_;
  DistributedOptimizer optimizer_;
};

bool is_shared(const Unit& unit, const Group& group) {
  return unit.shared && group.device().is_cpu();
}

std::unique_ptr<Wrapper> wrap(const Unit& unit, const Rank::Holding& holding, const Group& group) {
  DataParallelOptions options;
  options.strategy = parse_strategy(unit.synchronisation.text());
  options.verify_every = unit.verify_every;
  options.share_memory = is_shared(unit, group);
  if (unit.sharded && group.device().is_cpu()) options.shard = Shard::optimizer;
  if (unit.bucket_each) options.buckets = {.first = 0, .rest = 0};
  if (unit.buffers == Buffers::average) options.buffer_policy = BufferPolicy::average;
  if (unit.buffers == Buffers::own) options.buffer_policy = BufferPolicy::none;
  if (unit.front_end == FrontEnd::optimizer) {
    return std::make_unique<OptimizerWrapper>(holding, group, options);
  }
  const auto make = [&]<Output output>() -> std::unique_ptr<Wrapper> {
    return std::make_unique<DataParallelWrapper<output>>(holding, group, options);
  };
  switch (unit.output) {
    case Output::tensor:
      return make.template operator()<Output::tensor>();
    case Output::tuple:
      return make.template operator()<Output::tuple>();
    case Output::list:
      return make.template operator()<Output::list>();
    case Output::optional:
      return make.template operator()<Output::optional>();
    case Output::map:
      return make.template operator()<Output::map>();
    case Output::ordered_dict:
      return make.template operator()<Output::ordered_dict>();
    case Output::structure:
      return make.template operator()<Output::structure>();
    case Output::opaque:
      return make.template operator()<Output::opaque>();
  }
  return nullptr;
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
        rank_(program, world.rank(), world.device()) {
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
  std::vector<Values> observe() { return rank_.observe(); }

 private:
  const Unit& unit(int index) const { return program_.units[static_cast<std::size_t>(index)]; }
  std::unique_ptr<Wrapper>& wrapper(int index) {
    return wrappers_[static_cast<std::size_t>(index)];
  }
  const Group& group(int index) const { return groups_[static_cast<std::size_t>(index)]; }

  Rank::Forward forward() {
    return [this](int index, const at::Tensor& x, Mask layers) {
      return wrapper(index)->forward(x, layers);
    };
  }

  void weigh(int index, const std::vector<double>& weights) {
    if (!weights.empty()) wrapper(index)->weight(weights[static_cast<std::size_t>(world_.rank())]);
  }

  void run(const Backward& op) {
    std::vector<NoSync> local;
    for (const int index : units_of(op)) {
      if (has(op.local, index)) {
        local.push_back(wrapper(index)->no_sync());
      } else {
        weigh(index, op.weights);
      }
    }
    if (!op.update) {
      return rank_.run(op, forward(), [](const at::Tensor& loss) { loss.backward(); });
    }
    auto* optimizer = wrapper(op.paths[0][0])->optimizer();
    if (has(op.without_loss, world_.rank())) {
      rank_.run(op, forward(), {});
      return optimizer->backward_and_update({});
    }
    rank_.run(op, forward(), [&](const at::Tensor& loss) { optimizer->backward_and_update(loss); });
  }

  void run(const Step& op) {
    weigh(op.unit, op.weights);
    auto* optimizer = wrapper(op.unit)->optimizer();
    optimizer != nullptr ? optimizer->step() : void(rank_[op.unit].optimizer->step());
  }

  void run(const ZeroGrad& op) {
    if (op.by != ZeroGrad::By::front_end) return rank_.run(op);
    wrapper(op.unit)->optimizer()->zero_grad(op.set_to_none);
  }

  Checkpoint checkpoint(int index) {
    return {.model = *rank_[index].model,
            .optimizer = *rank_[index].optimizer,
            .strategy = wrapper(index)->stateful()};
  }
  std::filesystem::path file(int index) const { return folder_ / concat("unit", index); }

  void run(const SaveCheckpoint& op) {
    checkpoint(op.unit).save(file(op.unit), {}, group(op.unit));
  }
  void run(const LoadCheckpoint& op) { checkpoint(op.unit).load(file(op.unit), group(op.unit)); }

  void run(const Synchronize& op) { wrapper(op.unit)->optimizer()->synchronize(); }

  void run(const Rewrap& op) {
    wrapper(op.unit).reset();
    wrapper(op.unit) = wrap(unit(op.unit), rank_[op.unit], group(op.unit));
  }

  void run(const Evaluate& op) { rank_.run(op, forward()); }

  void run(const Refuse& op) {
    using What = Refuse::What;
    auto& holding = rank_[op.unit];
    switch (op.what) {
      case What::negative_weight: {
        wrapper(op.unit)->weight(world_.rank() == op.number ? -1 : 1);
        const Restore restore([&] { holding.model->zero_grad(); });
        return run(whole_backward(program_, op.unit));
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
        return void(wrap(other, holds, group(op.unit))->forward(x, 1));
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
    if (auto* optimizer = wrapper(index)->optimizer()) return optimizer->step();
    const auto& model = *rank_[index].model;
    const auto dtype = model.unique_parameters()[0].scalar_type();
    wrapper(index)->forward(at::ones({1, program_.width}, dtype).to(world_.device()), ~0U);
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
  std::vector<std::unique_ptr<Wrapper>> wrappers_;
};

std::string type_of(const std::exception& error) {
  const auto is = [&error]<class Type>(const Type*) {
    return dynamic_cast<const Type*>(&error) != nullptr;
  };
  if (is(static_cast<InvalidArgument*>(nullptr))) return "InvalidArgument";
  if (is(static_cast<ReplicaError*>(nullptr))) return "ReplicaError";
  if (is(static_cast<CheckpointError*>(nullptr))) return "CheckpointError";
  if (is(static_cast<TimeoutError*>(nullptr))) return "TimeoutError";
  if (is(static_cast<CommError*>(nullptr))) return "CommError";
  if (is(static_cast<Error*>(nullptr))) return "Error";
  if (is(static_cast<c10::Error*>(nullptr))) return "c10::Error";
  return "exception";
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
