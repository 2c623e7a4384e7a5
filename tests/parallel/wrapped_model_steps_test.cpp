// A DistributedOptimizer over a DistributedDataParallel: the steps of a DistributedOptimizer alone.
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

/// Two layers, of which a forward uses the first, both, or none, and a buffer.
struct Net : torch::nn::Module {
  Net() {
    set_values(*this, 1);
    norm->track();
  }
  at::Tensor forward(const at::Tensor& x, int layers) {
    if (layers == 0) return x * 2;
    const auto y = norm->forward(first->forward(x)).tanh();
    return layers > 1 ? second->forward(y) : y;
  }
  struct Shift : torch::nn::Module {
    void track() { mean = register_buffer("mean", at::zeros({5})); }
    at::Tensor forward(const at::Tensor& x) {
      mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
      return x - mean;
    }
    at::Tensor mean;
  };
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 5));
  std::shared_ptr<Shift> norm = register_module("norm", std::make_shared<Shift>());
  torch::nn::Linear second = register_module("second", torch::nn::Linear(5, 5));
};

SUITE_ON_RANKS(WrappedModelSteps, 1, 2, 3, 4);

TEST_P_ON_RANKS(WrappedModelSteps, AreThoseOfADistributedOptimizerAlone) {
  for (const auto& how : every_update) {
    SCOPED_TRACE(static_cast<int>(&how - every_update));
    const auto wrapped = std::make_shared<Net>(), plain = std::make_shared<Net>();
    torch::optim::AdamW adamw(wrapped->parameters(), AdamWOptions(0.01));
    torch::optim::AdamW of_plain(plain->parameters(), AdamWOptions(0.01));
    std::optional<DistributedDataParallel<Net>> ddp(std::in_place, wrapped, world, how);
    DistributedOptimizer optimizer(adamw, *ddp), alone(of_plain, *plain, world, how);
    for (int step = 0; step < 8; ++step) {
      const auto x = random({4, 7}, static_cast<std::uint64_t>(100 * step + world.rank()));
      const int layers = (step + world.rank()) % 3 != 0 ? 2 : 1;
      const auto loss = (*ddp)(x, layers).square().mean();
      const auto of_alone = plain->forward(x, layers).square().mean();
      if (step % 2 == 0) {
        optimizer.backward_and_update(loss);
        alone.backward_and_update(of_alone);
      } else {
        loss.backward();
        of_alone.backward();
        EXPECT_EQ(clip_grad_norm(optimizer, 0.1), clip_grad_norm(alone, 0.1));
        optimizer.step();
        alone.step();
        optimizer.zero_grad();
        alone.zero_grad();
      }
      world.barrier().wait();
      expect_equal_models(*wrapped, *plain);
      EXPECT_TRUE(torch::equal(wrapped->norm->mean, plain->norm->mean));
      world.barrier().wait();
    }
    ddp.reset();  // the steps go on without the wrapper
    optimizer.backward_and_update(wrapped->forward(at::ones({1, 7}), 2).sum());
    alone.backward_and_update(plain->forward(at::ones({1, 7}), 2).sum());
    world.barrier().wait();
    EXPECT_TRUE(torch::equal(wrapped->first->weight, plain->first->weight));
    world.barrier().wait();
  }
}

TEST_ON_RANKS(WrappedModel, NeedsADistributedOptimizerForOptionsThatDivideTheUpdate, 2) {
  for (const auto& how : every_update) {
    if (how.shard == Shard::none && how.share_memory != true) continue;
    const auto model = std::make_shared<Net>();
    DistributedDataParallel ddp(model, world, how);
    const auto x = at::ones({1, 7});
    const auto* const option = how.share_memory == true ? "share_memory" : "shard";
    const auto what = std::string(option) + ": got no DistributedOptimizer, expected one";
    EXPECT_THAT(refusal([&] { (void)ddp(x, 2); }), HasSubstr(what));
    EXPECT_THAT(refusal([&] { model->forward(x, 2).sum().backward(); }), HasSubstr(what));
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(ddp(x, 2).numel(), 5);
    }
    model->zero_grad();
    torch::optim::SGD sgd(model->parameters(), SGDOptions(0.1));
    {
      DistributedOptimizer optimizer(sgd, ddp);
      optimizer.backward_and_update(ddp(x, 2).sum());
    }
    EXPECT_THAT(refusal([&] { (void)ddp(x, 2); }), HasSubstr(what));
    DistributedOptimizer next(sgd, ddp);
    next.backward_and_update(ddp(x, 2).sum());
    expect_usable(world);
  }
}

// The mean of a parameter that the DistributedOptimizer does not update is whole.
TEST_P_ON_RANKS(WrappedModelSteps, LeaveTheGradientsOfOtherOptimizers) {
  for (const auto& how : {DataParallelOptions{}, DataParallelOptions{.shard = Shard::optimizer}}) {
    const auto net = std::make_shared<Net>(), other = std::make_shared<Net>();
    torch::optim::SGD body(net->first->parameters(), SGDOptions(0.1));
    torch::optim::SGD head(net->second->parameters(), SGDOptions(0.1));
    torch::optim::SGD of_other(other->parameters(), SGDOptions(0.1));
    auto each = how;
    each.buckets = one_each.buckets;
    DistributedDataParallel ddp(net, world, each);
    DistributedOptimizer optimizer(body, ddp), whole(of_other, *other, world);
    for (int step = 0; step < 3; ++step) {
      const auto x = random({4, 7}, static_cast<std::uint64_t>(10 * step + world.rank()));
      optimizer.backward_and_update(ddp(x, 2).sum());
      head.step();
      head.zero_grad();
      whole.backward_and_update(other->forward(x, 2).sum());
    }
    expect_equal_models(*net, *other);
  }
}

TEST_ON_RANKS(WrappedModel, ChecksAgainThatParametersCanBeMoved, 2) {
  DistributedDataParallel ddp(std::make_shared<Net>(), world, every_update[1]);
  torch::optim::SGD sgd(ddp.module()->parameters(), SGDOptions(0.1));
  {
    const auto alias = ddp.module()->first->weight.detach();
    EXPECT_THAT(refusal([&] { DistributedOptimizer(sgd, ddp); }),
                HasSubstr("parameter first.weight shares its memory with another tensor"));
  }
  DistributedOptimizer(sgd, ddp).backward_and_update(ddp(at::ones({1, 7}), 2).sum());
}

TEST_ON_RANKS(WrappedModel, HasOneDistributedOptimizerAtATime, 2) {
  const auto model = std::make_shared<Net>();
  DistributedDataParallel ddp(model, world);
  torch::optim::SGD sgd(model->parameters(), SGDOptions(0.1));
  Net elsewhere;
  torch::optim::SGD is_agreed(elsewhere.parameters(), SGDOptions(0.1));
  EXPECT_THAT(refusal([&] { DistributedOptimizer(is_agreed, ddp); }),
              HasSubstr("is not a parameter of the model"));
  {
    DistributedOptimizer optimizer(sgd, ddp);
    EXPECT_THAT(refusal([&] { DistributedOptimizer(sgd, ddp); }),
                HasSubstr("got a DistributedDataParallel that has a DistributedOptimizer"));
    optimizer.backward_and_update(ddp(at::ones({1, 7}), 2).sum());
  }
  // The wrapper alone, as before.
  ddp(at::full({1, 7}, 1.0 + world.rank()), 2).sum().backward();
  EXPECT_TRUE(model->second->bias.grad().defined());
  sgd.step();
  DistributedDataParallel divided(std::make_shared<Net>(), world, every_update[1]);
  torch::optim::LBFGS of_divided(divided.module()->parameters());
  expect_refused(world, "shard: got torch::optim::LBFGS",
                 [&] { DistributedOptimizer(of_divided, divided); });
}

}  // namespace
}  // namespace lockstep::testing
