// When the buffers that a rank has received are written.
#include <torch/script.h>

#include "lockstep/model_files.h"
#include "lockstep/moving_average.h"
#include "lockstep/sync_batch_norm.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing::buffer_sync {
namespace {

constexpr double rate = 0.1;

/// Its batch norm uses the buffers in evaluation mode.
struct Normalised : torch::nn::Module {
  Normalised() {
    to(own_device(), at::kDouble);
    set_values(*this, 5);
  }
  at::Tensor forward(const at::Tensor& x) {
    return out->forward(norm->forward(in->forward(x)).tanh());
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(4, 2));
};

at::Tensor batch(int rank, int index) {
  return random({6, 4}, static_cast<std::uint64_t>(10 * index + rank), at::kDouble) + rank;
}

at::Tensor loss_of(const at::Tensor& output) { return output.square().sum(); }

at::Tensor evaluated(DistributedDataParallel<Normalised>& ddp, const at::Tensor& x) {
  ddp.module()->eval();
  auto output = ddp(x);
  ddp.module()->train();
  return output;
}

/// A copy of the running means and variances.
at::Tensor statistics(const Normalised& model) {
  return at::stack({model.norm->running_mean, model.norm->running_var});
}

/// The statistics of a rank's batch norm after a forward in training mode.
at::Tensor statistics_after(int rank, int index) {
  Normalised model;
  model.forward(batch(rank, index));
  return statistics(model);
}

at::Tensor synchronised_statistics(BufferPolicy policy, const Group& world) {
  if (policy == BufferPolicy::none) return statistics_after(world.rank(), 0);
  auto sum = statistics_after(0, 0);
  if (policy == BufferPolicy::from_rank0) return sum;
  for (int rank = 1; rank < world.size(); ++rank) sum += statistics_after(rank, 0);
  return sum / world.size();
}

/// An event while received buffers wait for the graph of an evaluation forward.
using Event = std::function<void(std::optional<DistributedDataParallel<Normalised>>&, Normalised&,
                                 at::Tensor& kept)>;

TEST_ON_RANKS(BufferSync, WritesBuffersWhenNoOtherGraphIsStillToRun, 3) {
  const std::vector<std::pair<std::string, Event>> events{
      {"the graph's backward", [](auto&, auto&, at::Tensor& kept) { kept.sum().backward(); }},
      {"the graph's backward under no_sync()",
       [](auto& ddp, auto&, at::Tensor& kept) {
         const auto alone = ddp->no_sync();
         kept.sum().backward();
       }},
      {"the end of the graph", [](auto&, auto&, at::Tensor& kept) { kept.reset(); }},
      {"the end of the wrapper", [](auto& ddp, auto&, auto&) { ddp.reset(); }},
      {"state_dict()", [](auto&, Normalised& model, auto&) { state_dict(model); }},
      {"a forward without gradients",
       [](auto& ddp, Normalised& model, auto&) {
         const at::NoGradGuard no_grad;
         model.eval();
         (*ddp)(batch(0, 3));
       }},
      {"a forward with gradients",
       [](auto& ddp, Normalised& model, auto&) {
         model.eval();
         (*ddp)(batch(0, 3));
       }},
  };
  for (const auto policy : {BufferPolicy::from_rank0, BufferPolicy::average, BufferPolicy::none}) {
    for (const auto& [name, happen] : events) {
      const auto model = std::make_shared<Normalised>();
      std::optional<DistributedDataParallel<Normalised>> ddp;
      ddp.emplace(model, world, DataParallelOptions{.buffer_policy = policy});
      auto kept = evaluated(*ddp, batch(world.rank(), 1));
      loss_of((*ddp)(batch(world.rank(), 0))).backward();
      EXPECT_TRUE(at::equal(statistics(*model), statistics_after(world.rank(), 0))) << name;
      happen(ddp, *model, kept);
      EXPECT_LT(distance(statistics(*model), synchronised_statistics(policy, world)), 1e-15)
          << name;
      EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), 1) << name;
    }
  }
}

TEST_ON_RANKS(BufferSync, BeforeAForwardRefusesTheGraphsThatSavedOtherValues, 2) {
  const auto model = std::make_shared<Normalised>();
  DistributedDataParallel ddp(model, world);
  const auto kept = loss_of(evaluated(ddp, batch(world.rank(), 1)));
  loss_of(ddp(batch(world.rank(), 0))).backward();
  loss_of(ddp(batch(world.rank(), 2))).backward();
  const auto alone = ddp.no_sync();
  const auto error = message_of<std::exception>([&] { kept.backward(); });
  if (world.rank() == 0) {
    EXPECT_EQ(error, "") << "it has its own values";
  } else {
    EXPECT_THAT(error, HasSubstr("modified by an inplace operation"));
  }
}

TEST_ON_RANKS(BufferSync, LeavesTheVersionOfConstants, 2) {
  struct Masked : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x * p * mask; }
    at::Tensor p = register_parameter("p", at::ones({4}, at::kDouble));
    at::Tensor mask = register_buffer("mask", at::tensor({0., 1., 1., 0.}, at::kDouble));
  };
  const auto model = std::make_shared<Masked>();
  DistributedDataParallel ddp(model, world);
  auto loss = ddp(batch(world.rank(), 0)).sum();
  for (int step = 1; step < 4; ++step) {
    const auto next = ddp(batch(world.rank(), step)).sum();
    loss.backward();
    loss = next;
  }
  EXPECT_EQ(model->mask._version(), 0);
}

TEST_ON_RANKS(BufferSync, AveragesReceivedValuesThatSomeRanksHaveNotWritten, 3) {
  const auto model = std::make_shared<Normalised>();
  DistributedDataParallel ddp(model, world, {.buffer_policy = BufferPolicy::average});
  at::Tensor kept;
  if (world.rank() == 1) kept = evaluated(ddp, batch(1, 1));
  loss_of(ddp(batch(world.rank(), 0))).backward();
  model->out->weight.sum().backward();  // without a forward of the wrapper
  kept.reset();
  const auto expected = synchronised_statistics(BufferPolicy::average, world);
  EXPECT_LT(distance(statistics(*model), expected), 1e-15);
}

TEST_ON_RANKS(BufferSync, WritesBeforeBuffersEnterAMovingAverage, 2) {
  for (const bool applies : {false, true}) {
    const auto model = std::make_shared<Normalised>();
    DistributedDataParallel ddp(model, world);
    MovingAverage average(*model, {.average_buffers = true});
    average.update();
    const auto kept = evaluated(ddp, batch(world.rank(), 1));
    loss_of(ddp(batch(world.rank(), 0))).backward();
    applies ? static_cast<void>(average.apply()) : average.update();
    EXPECT_TRUE(at::equal(statistics(*model), statistics_after(0, 0))) << applies;
  }
}

TEST_ON_RANKS(BufferSync, KeepsWhatTheProgramWritesMeanwhile, 2) {
  const auto model = std::make_shared<Normalised>();
  DistributedDataParallel ddp(model, world);
  auto kept = evaluated(ddp, batch(world.rank(), 1));
  loss_of(ddp(batch(world.rank(), 0))).backward();
  model->norm->running_mean.fill_(7);
  model->norm->running_var.set_data(at::full({4}, 7, at::kDouble));
  kept.reset();
  EXPECT_TRUE(at::equal(statistics(*model), at::full({2, 4}, 7, at::kDouble)));
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
  const auto run = [&](const auto& forward) {
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

/// A script with a parameter p and the buffer mean.
torch::jit::Module script(at::IntArrayRef buffer, const char* definition) {
  torch::jit::Module model("script");
  const auto p = at::linspace(1, 2, 4, at::kDouble).to(own_device()).requires_grad_();
  model.register_parameter("p", p, /*is_buffer=*/false);
  model.register_buffer("mean", at::zeros(buffer, at::kDouble).to(own_device()));
  model.define(definition);
  return model;
}

/// One whose forward puts a new tensor in the place of its buffer.
torch::jit::Module assigning_script() {
  return script({4}, R"(
    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return (x - self.mean) * self.p
  )");
}

/// Its buffer after synchronised forwards.
at::Tensor assigned_mean(BufferPolicy policy, int ranks, int steps) {
  auto mean = at::zeros({4}, at::kDouble).to(own_device());
  for (int step = 0; step < steps; ++step) {
    auto next = at::zeros_like(mean);
    const int counted = policy == BufferPolicy::average ? ranks : 1;
    for (int rank = 0; rank < counted; ++rank)
      next += (0.9 * mean + 0.1 * batch(rank, step).mean(0)) / counted;
    mean = next;
  }
  return mean;
}

TEST_ON_RANKS(BufferSync, FollowsTheTensorsThatAForwardAssigns, 3) {
  for (const auto policy : {BufferPolicy::from_rank0, BufferPolicy::average}) {
    DataParallelOptions options{.buffer_policy = policy};
    auto wrapped = assigning_script();
    DistributedDataParallel ddp(wrapped, world, options);
    auto optimized = assigning_script();
    torch::optim::SGD sgd(lockstep::parameters(optimized), rate);
    options.optimized_only = policy == BufferPolicy::average;
    DistributedOptimizer optimizer(sgd, optimized, world, options);
    for (int step = 0; step < 3; ++step) {
      const auto x = batch(world.rank(), step);
      loss_of(ddp(x).toTensor()).backward();
      optimizer.backward_and_update(loss_of(optimized.forward({x}).toTensor()));
      const auto expected = assigned_mean(policy, world.size(), step + 1);
      EXPECT_LT(distance(wrapped.attr("mean").toTensor(), expected), 1e-14) << step;
      EXPECT_LT(distance(optimized.attr("mean").toTensor(), expected), 1e-14) << step;
    }
  }
}

TEST_ON_RANKS(BufferSync, RefusesBuffersOfOtherSizesDtypeOrNumber, 2) {
  const auto error_after = [&](const auto& change) {
    auto model = assigning_script();
    DistributedDataParallel ddp(model, world);
    change(model);
    return refusal([&] { ddp(batch(world.rank(), 0)); });
  };
  const auto assigns = [](const at::Tensor& mean) {
    return [mean](torch::jit::Module& model) { model.setattr("mean", mean.to(own_device())); };
  };
  EXPECT_EQ(error_after(assigns(at::ones({4}, at::kDouble))), "");
  EXPECT_THAT(error_after(assigns(at::zeros({5}, at::kDouble))),
              HasSubstr("DistributedDataParallel: buffer mean is now Double [5], expected the "
                        "dtype and the sizes as when the model was wrapped: wrap it again"));
  EXPECT_THAT(error_after(assigns(at::zeros({4}))), HasSubstr("buffer mean is now Float [4]"));
  EXPECT_THAT(
      error_after([](torch::jit::Module& model) { model.register_buffer("b", at::zeros({3})); }),
      HasSubstr("got 2 buffers, expected 1"));
  expect_usable(world);
  // An optimizer refuses them in its step.
  auto model = assigning_script();
  torch::optim::SGD sgd(lockstep::parameters(model), rate);
  DistributedOptimizer optimizer(sgd, model, world);
  const auto loss = loss_of(model.forward({batch(world.rank(), 0)}).toTensor());
  model.setattr("mean", at::zeros({5}, at::kDouble).to(own_device()));
  expect_refused(world, "DistributedOptimizer: buffer mean is now Double [5]",
                 [&] { optimizer.backward_and_update(loss); });
  // One that changes in place between forward and backward is left out of the exchange.
  Normalised changed;
  DistributedDataParallel ddp(changed, world);
  const auto output = ddp(batch(world.rank(), 0));
  changed.norm->num_batches_tracked.resize_({5});
  loss_of(output).backward();
  expect_refused(world,
                 "DistributedDataParallel: buffer norm.num_batches_tracked is now Double [5]",
                 [&] { ddp(batch(world.rank(), 0)); });
}

TEST_ON_RANKS(BufferSync, EndsAnExchangeInWhichARankHasABufferOfOtherSizes, 2) {
  auto model = script({2, 4}, R"(
    def forward(self, x):
        self.mean = x
        return x * self.p
  )");
  DistributedDataParallel ddp(model, world);
  const auto x = [&](int rows) { return at::ones({rows, 4}, at::kDouble).to(own_device()); };
  loss_of(ddp(x(2 + world.rank())).toTensor()).backward();
  const auto error = refusal([&] { ddp(x(2)); });
  const bool is_named = error.find("buffer mean is now Double [3, 4]") != std::string::npos;
  EXPECT_EQ(is_named, world.rank() == 1) << error;
  expect_usable(world);
}

}  // namespace
}  // namespace lockstep::testing::buffer_sync
