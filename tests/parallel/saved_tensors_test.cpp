// Buffers that a graph has saved keep the values that its forward used. Gradients are those of one
// process. A graph that has saved a parameter is refused once the parameter has changed, whoever
// changed it.
#include "tests/parallel/saved_tensors.h"

#include "lockstep/fused_optimizers.h"
#include "lockstep/strategies.h"
#include "lockstep/sync_batch_norm.h"
#include "tests/message_of.h"

namespace lockstep::testing::saved_tensors {
namespace {

/// Forwards and backwards of one step.
struct Program {
  std::string name;
  std::function<std::shared_ptr<Model>()> make;
  std::function<void(Model&, const Forward&, int rank)> run;
};

std::vector<Program> programs() {
  const auto two_forwards = [](Model&, const Forward& forward, int rank) {
    const auto first = loss_of(forward(batch(rank, 0))), second = loss_of(forward(batch(rank, 1)));
    first.backward();
    second.backward();
  };
  const auto evaluation = [](Model& model, const Forward& forward, int rank) {
    const auto train = loss_of(forward(batch(rank, 0)));
    model.eval();
    const auto evaluated = loss_of(forward(batch(rank, 1)));
    model.train();
    train.backward();
    evaluated.backward();
  };
  const auto retained = [](Model&, const Forward& forward, int rank) {
    const auto output = forward(batch(rank, 0));
    const auto first = output.sum(), second = loss_of(output);
    first.backward({}, /*retain_graph=*/true);
    second.backward();
  };
  const auto make_normalised = [] { return std::make_shared<Normalised>(); };
  const auto make_recomputed = [] { return std::make_shared<Normalised>(true); };
  return {
      {"an evaluation forward before the backward", make_normalised, evaluation},
      {"a retained graph", [] { return std::make_shared<Scaled>(); }, retained},
      {"two forwards, then two backwards", make_normalised, two_forwards},
      {"the same with recompute()", make_recomputed, two_forwards},
  };
}

/// The parameters after one step of SGD with the mean of all ranks' gradients, in one process.
std::vector<at::Tensor> expected_parameters(const Program& program, int ranks) {
  std::vector<at::Tensor> means;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto model = program.make();
    program.run(
        *model, [&](const at::Tensor& x) { return model->forward(x); }, rank);
    const auto parameters = model->parameters();
    if (means.empty()) {
      for (const auto& parameter : parameters) means.push_back(parameter.detach().clone());
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      means[i] -= rate / ranks * parameters[i].grad();
  }
  return means;
}

enum class FrontEnd { data_parallel, list, both, optimizer };

/// One step of the program. The step of DistributedOptimizer is in it.
void train(const Program& program, FrontEnd front_end, const DataParallelOptions& options,
           const std::shared_ptr<Model>& model, const Group& world) {
  torch::optim::SGD sgd(model->parameters(), rate);
  std::optional<DistributedDataParallel<Model>> ddp;
  std::optional<DistributedDataParallel<ModelView>> list;
  std::optional<DistributedOptimizer> optimizer;
  Forward forward = [&](const at::Tensor& x) { return model->forward(x); };
  if (front_end == FrontEnd::optimizer) {
    optimizer.emplace(sgd, *model, world, options);
  } else if (front_end == FrontEnd::list) {
    list.emplace(ModelView(ModelView(*model).parameters(), ModelView(*model).buffers()), world,
                 options);
    forward = [&](const at::Tensor& x) { return (*list)([&] { return model->forward(x); }); };
  } else {
    ddp.emplace(model, world, options);
    if (front_end == FrontEnd::both) optimizer.emplace(sgd, *ddp);
    forward = [&](const at::Tensor& x) { return (*ddp)(x); };
  }
  program.run(*model, forward, world.rank());
  optimizer ? optimizer->step() : static_cast<void>(sgd.step());
}

TEST_ON_RANKS(SavedBuffers, GiveTheGradientsOfOneProcess, 2, 3) {
  std::vector<DataParallelOptions> all(std::begin(every_update), std::end(every_update));
  for (const auto policy : {BufferPolicy::average, BufferPolicy::none})
    all.push_back({.buffer_policy = policy});
  for (const auto& program : programs()) {
    const auto expected = expected_parameters(program, world.size());
    for (const auto front_end :
         {FrontEnd::data_parallel, FrontEnd::list, FrontEnd::both, FrontEnd::optimizer}) {
      const bool has_optimizer = front_end == FrontEnd::both || front_end == FrontEnd::optimizer;
      for (const auto& options : all) {
        if (divides_update(options) && !has_optimizer) continue;
        SCOPED_TRACE(lockstep::detail::concat(program.name, ", front end ",
                                              static_cast<int>(front_end), ", options ",
                                              &options - all.data()));
        const auto model = program.make();
        EXPECT_NO_THROW(train(program, front_end, options, model, world));
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_LT(distance(model->parameters()[i].detach(), expected[i]), 1e-12) << i;
      }
    }
  }
}

/// A generator and a critic, both with batch norms.
struct Adversaries {
  std::shared_ptr<Normalised> generator = std::make_shared<Normalised>();
  std::shared_ptr<Normalised> critic = std::make_shared<Normalised>();

  /// average(model) averages gradients that no wrapper has averaged.
  void train(int rank, const Forward& generate, const Forward& criticise,
             const std::function<void(Normalised&)>& average) {
    torch::optim::SGD of_generator(generator->parameters(), rate);
    torch::optim::SGD of_critic(critic->parameters(), rate);
    for (int step = 0; step < 3; ++step) {
      const auto fake = generate(batch(rank, 20 + step)).repeat({1, 2});
      const auto real_loss = loss_of(criticise(batch(rank, step))).mean();
      const auto fake_loss = loss_of(criticise(fake.detach()) - 1);
      real_loss.backward();
      fake_loss.backward();
      average(*critic);
      of_critic.step();
      loss_of(criticise(fake)).backward();
      average(*generator);
      of_generator.step();
      generator->zero_grad();
      critic->zero_grad();
    }
  }
};

TEST_ON_RANKS(SavedBuffers, OfAdversariesGiveTheSameTraining, 3) {
  Adversaries own;
  own.train(
      world.rank(), [&](const at::Tensor& x) { return own.generator->forward(x); },
      [&](const at::Tensor& x) { return own.critic->forward(x); },
      [&](Normalised& model) {
        for (const auto& parameter : model.parameters())
          world.all_reduce(parameter.grad(), ReduceOp::avg).wait();
      });
  for (const auto policy : {BufferPolicy::from_rank0, BufferPolicy::average}) {
    Adversaries wrapped;
    DistributedDataParallel generate(wrapped.generator, world, {.buffer_policy = policy});
    DistributedDataParallel criticise(wrapped.critic, world, {.buffer_policy = policy});
    wrapped.train(
        world.rank(), [&](const at::Tensor& x) { return generate(x); },
        [&](const at::Tensor& x) { return criticise(x); }, [](Normalised&) {});
    expect_near_models(*wrapped.generator, *own.generator, 1e-12);
    expect_near_models(*wrapped.critic, *own.critic, 1e-12);
  }
}

TEST_ON_RANKS(SavedBuffers, OfSyncBatchNormGiveTheSameGradients, 3) {
  struct Synchronised : torch::nn::Module {
    explicit Synchronised(const Group& world)
        : norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(4), world))) {
      to(at::kDouble);
    }
    at::Tensor forward(const at::Tensor& x) { return norm->forward(x * p); }
    at::Tensor p = register_parameter("p", at::linspace(1, 2, 4, at::kDouble));
    SyncBatchNorm norm;
  };
  const auto norms = world.split(0);
  const auto plain = std::make_shared<Synchronised>(norms);
  const auto model = std::make_shared<Synchronised>(norms);
  DistributedDataParallel ddp(model, world);
  const auto run = [&](const Forward& forward) {
    const auto first = loss_of(forward(batch(world.rank(), 0)) - 1);
    const auto second = loss_of(forward(batch(world.rank(), 1)) - 1);
    first.backward();
    second.backward();
  };
  run([&](const at::Tensor& x) { return ddp(x); });
  run([&](const at::Tensor& x) { return plain->forward(x); });
  for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
    const auto expected = plain->parameters()[i].grad();
    world.all_reduce(expected, ReduceOp::avg).wait();
    EXPECT_LT(distance(model->parameters()[i].grad(), expected), 1e-12) << i;
  }
  EXPECT_TRUE(at::equal(model->norm->running_mean, plain->norm->running_mean));
}

/// Whether a graph that saved the parameter before a step of the optimizer is refused after it.
bool refuses_parameter_of_before(const at::Tensor& parameter,
                                 const std::function<void(const at::Tensor& loss)>& step) {
  const auto kept = parameter.square().sum();
  step(parameter.sum());
  const auto error = message_of<c10::Error>([&] { torch::autograd::grad({kept}, {parameter}); });
  return error.find("modified by an inplace operation") != std::string::npos;
}

TEST_ON_RANKS(SavedParameters, AreRefusedAfterTheStepThatChangedThem, 3) {
  using torch::optim::SGDOptions;
  struct Case {
    std::string name;
    at::ScalarType dtype;
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> make;
  };
  const std::vector<Case> cases{
      // LibTorch's SGD changes no versions.
      {"Adam", at::kFloat, [](auto p) { return std::make_unique<torch::optim::Adam>(p, 0.1); }},
      {"FusedSGD", at::kFloat,
       [](auto p) { return std::make_unique<FusedSgd>(p, SGDOptions(0.1)); }},
      {"FusedAdamW, low precision", at::kBFloat16, [](auto p) {
         return std::make_unique<FusedAdamW>(p, torch::optim::AdamWOptions(0.1),
                                             LowPrecision::master);
       }}};
  for (const auto& [name, dtype, make] : cases) {
    for (const auto& options : every_update) {
      SCOPED_TRACE(lockstep::detail::concat(name, ", update ", &options - every_update));
      if (options.share_memory == true && dtype == at::kBFloat16) continue;  // refused
      // Rank 2 updates no element of it.
      auto parameter = at::ones({2}, dtype).requires_grad_();
      const auto inner = make({parameter});
      DistributedOptimizer optimizer(*inner, ModelView({{"p", parameter}}), world, options);
      EXPECT_TRUE(refuses_parameter_of_before(
          parameter, [&](const at::Tensor& loss) { optimizer.backward_and_update(loss); }));
      EXPECT_TRUE(refuses_parameter_of_before(parameter, [&](const at::Tensor& loss) {
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
      }));
    }
  }
}

TEST_ON_RANKS(SavedParameters, AreRefusedAfterABroadcast, 2) {
  auto parameter = at::full({2}, 1.0 + world.rank(), at::kDouble).requires_grad_();
  const ModelView model({{"p", parameter}});
  const auto refused = refuses_parameter_of_before(
      parameter, [&](const at::Tensor&) { broadcast_parameters(model, world); });
  EXPECT_EQ(refused, world.rank() != 0) << "rank 0 keeps its values";
}

TEST_ON_RANKS(SavedParameters, AreRefusedAfterAStrategyHasAveragedThem, 2) {
  auto parameter = at::ones({2}, at::kDouble).requires_grad_();
  torch::optim::SGD sgd({parameter}, 0.1);
  DistributedOptimizer optimizer(sgd, ModelView({{"p", parameter}}), world,
                                 LocalSgd{.period = 100});
  optimizer.backward_and_update(parameter.sum() * world.rank());
  EXPECT_TRUE(
      refuses_parameter_of_before(parameter, [&](const at::Tensor&) { optimizer.synchronize(); }));
}

}  // namespace
}  // namespace lockstep::testing::saved_tensors
