// Buffers that a graph has saved keep the values that its forward used. Gradients are those of one
// process.
#include "tests/parallel/saved_buffers.h"

#include "lockstep/sync_batch_norm.h"

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

struct Way {
  std::string name;
  FrontEnd front_end;
  DataParallelOptions options;
};

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const auto policy : {BufferPolicy::from_rank0, BufferPolicy::average, BufferPolicy::none}) {
    const auto name = lockstep::detail::concat(", policy ", static_cast<int>(policy));
    all.push_back({"DDP" + name, FrontEnd::data_parallel, {.buffer_policy = policy}});
    all.push_back({"DDP of a list" + name, FrontEnd::list, {.buffer_policy = policy}});
    all.push_back({"optimizer" + name, FrontEnd::optimizer, {.buffer_policy = policy}});
  }
  for (const auto front_end : {FrontEnd::both, FrontEnd::optimizer}) {
    const std::string name = front_end == FrontEnd::both ? "both" : "optimizer";
    for (const auto& update : every_update) {
      const auto number = &update - every_update;
      all.push_back({lockstep::detail::concat(name, ", update ", number), front_end, update});
    }
  }
  return all;
}

/// One step of the program. The step of DistributedOptimizer is in it.
void train(const Program& program, const Way& way, const std::shared_ptr<Model>& model,
           const Group& world) {
  torch::optim::SGD sgd(model->parameters(), rate);
  std::optional<DistributedDataParallel<Model>> ddp;
  std::optional<DistributedDataParallel<ModelView>> list;
  std::optional<DistributedOptimizer> optimizer;
  Forward forward = [&](const at::Tensor& x) { return model->forward(x); };
  if (way.front_end == FrontEnd::optimizer) {
    optimizer.emplace(sgd, *model, world, way.options);
  } else if (way.front_end == FrontEnd::list) {
    list.emplace(ModelView(ModelView(*model).parameters(), ModelView(*model).buffers()), world,
                 way.options);
    forward = [&](const at::Tensor& x) { return (*list)([&] { return model->forward(x); }); };
  } else {
    ddp.emplace(model, world, way.options);
    if (way.front_end == FrontEnd::both) optimizer.emplace(sgd, *ddp);
    forward = [&](const at::Tensor& x) { return (*ddp)(x); };
  }
  program.run(*model, forward, world.rank());
  optimizer ? optimizer->step() : static_cast<void>(sgd.step());
}

TEST_ON_RANKS(SavedBuffers, GiveTheGradientsOfOneProcess, 2, 3) {
  for (const auto& program : programs()) {
    const auto expected = expected_parameters(program, world.size());
    for (const auto& way : ways()) {
      SCOPED_TRACE(program.name + ": " + way.name);
      const auto model = program.make();
      EXPECT_NO_THROW(train(program, way, model, world));
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(distance(model->parameters()[i].detach(), expected[i]), 1e-12) << i;
    }
  }
}

/// Trains a generator and a critic, both with batch norms. average(model) averages gradients that
/// no wrapper has averaged.
void train_adversaries(Normalised& generator, Normalised& critic, const Forward& generate,
                       const Forward& criticise, const std::function<void(Normalised&)>& average,
                       int rank) {
  torch::optim::SGD of_generator(generator.parameters(), rate);
  torch::optim::SGD of_critic(critic.parameters(), rate);
  for (int step = 0; step < 3; ++step) {
    const auto fake = generate(batch(rank, 20 + step)).repeat({1, 2});
    const auto real_loss = loss_of(criticise(batch(rank, step))).mean();
    const auto fake_loss = loss_of(criticise(fake.detach()) - 1);
    real_loss.backward();
    fake_loss.backward();
    average(critic);
    of_critic.step();
    const auto loss = loss_of(criticise(fake));
    loss.backward();
    average(generator);
    of_generator.step();
    generator.zero_grad();
    critic.zero_grad();
  }
}

TEST_ON_RANKS(SavedBuffers, OfAdversariesGiveTheSameTraining, 3) {
  for (const auto policy : {BufferPolicy::from_rank0, BufferPolicy::average}) {
    const auto generator = std::make_shared<Normalised>(), critic = std::make_shared<Normalised>();
    DistributedDataParallel generate(generator, world, {.buffer_policy = policy});
    DistributedDataParallel criticise(critic, world, {.buffer_policy = policy});
    train_adversaries(
        *generator, *critic, [&](const at::Tensor& x) { return generate(x); },
        [&](const at::Tensor& x) { return criticise(x); }, [](Normalised&) {}, world.rank());
    Normalised own_generator, own_critic;
    train_adversaries(
        own_generator, own_critic, [&](const at::Tensor& x) { return own_generator.forward(x); },
        [&](const at::Tensor& x) { return own_critic.forward(x); },
        [&](Normalised& model) {
          for (const auto& parameter : model.parameters())
            world.all_reduce(parameter.grad(), ReduceOp::avg).wait();
        },
        world.rank());
    expect_near_models(*generator, own_generator, 1e-12);
    expect_near_models(*critic, own_critic, 1e-12);
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

}  // namespace
}  // namespace lockstep::testing::saved_tensors
