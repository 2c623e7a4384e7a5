// recompute() against the same model without it: the bits of outputs, gradients, buffers and
// random states must be equal.
#include "lockstep/activation_checkpoint.h"

#include <ATen/autocast_mode.h>

#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

#include "lockstep/autocast.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/sync_batch_norm.h"
#include "tests/matchers.h"
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t features = 6;

/// Linear, batch norm, dropout, tanh, and a parameter that all blocks share.
struct DropBlockImpl : torch::nn::Module {
  DropBlockImpl(torch::nn::AnyModule batch_norm, at::Generator generator, torch::nn::Linear all)
      : norm(std::move(batch_norm)), random(std::move(generator)), shared(std::move(all)) {
    register_module("linear", linear);
    register_module("norm", norm.ptr());
    register_module("shared", shared);
  }
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    auto h = linear->forward(x);
    inner = c10::weak_intrusive_ptr<at::TensorImpl>(h.getIntrusivePtr());
    h = norm.forward(h);
    h = h * at::empty_like(h).bernoulli_(0.5, random) * 2;
    return x + shared->forward(h.tanh());
  }
  torch::nn::Linear linear{features, features};
  torch::nn::AnyModule norm;
  at::Generator random;
  torch::nn::Linear shared;
  int calls = 0;
  c10::weak_intrusive_ptr<at::TensorImpl> inner{c10::intrusive_ptr<at::TensorImpl>()};
};
TORCH_MODULE(DropBlock);

/// How a BlockNet runs its blocks.
enum class Mode { plain, each, all_in_one, nested };

struct BlockNet : torch::nn::Module {
  /// With a group, batch norms are synchronised, and each rank has a generator of its own.
  BlockNet(Mode how, int count, const std::optional<Group>& group = {}) : mode(how) {
    const auto options = torch::nn::BatchNormOptions(features).momentum(0.3);
    if (group) {
      generator =
          at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(group->rank()));
    }
    for (int i = 0; i < count; ++i) {
      blocks.emplace_back(group ? torch::nn::AnyModule(SyncBatchNorm(options, *group))
                                : torch::nn::AnyModule(torch::nn::BatchNorm1d(options)),
                          group ? generator : at::detail::getDefaultCPUGenerator(), shared);
      register_module(lockstep::detail::concat("block", i), blocks.back());
    }
    register_module("head", head);
    set_values(*this, 1);
  }

  at::Tensor run_all(at::Tensor x) {
    for (auto& block : blocks) x = block->forward(x);
    return x;
  }

  at::Tensor forward(at::Tensor x) {
    RecomputeOptions options;
    if (generator.defined()) options.generators = {generator};
    if (mode == Mode::all_in_one || mode == Mode::nested) options.buffers = buffers();
    const auto run_each = [this, options](at::Tensor y) {
      for (auto& block : blocks) y = recompute(options, block, y);
      return y;
    };
    if (mode == Mode::plain) x = run_all(x);
    if (mode == Mode::each) x = run_each(x);
    if (mode == Mode::all_in_one)
      x = recompute(
          options, [this](const at::Tensor& y) { return run_all(y); }, x);
    if (mode == Mode::nested) x = recompute(options, run_each, x);
    return head->forward(x);
  }

  Mode mode;
  at::Generator generator;
  torch::nn::Linear shared{features, features};
  std::vector<DropBlock> blocks;
  torch::nn::Linear head{features, 2};
};

const auto recomputing = {Mode::each, Mode::all_in_one, Mode::nested};

/// The same gradients and buffers.
void expect_same_state(const torch::nn::Module& got, const torch::nn::Module& expected) {
  for (const auto& entry : expected.named_parameters()) {
    const auto gradient = got.named_parameters()[entry.key()].grad();
    ASSERT_EQ(gradient.defined(), entry.value().grad().defined()) << entry.key();
    if (gradient.defined()) {
      EXPECT_TRUE(at::equal(gradient, entry.value().grad())) << entry.key();
    }
  }
  for (const auto& entry : expected.named_buffers())
    EXPECT_TRUE(at::equal(got.named_buffers()[entry.key()], entry.value())) << entry.key();
}

at::Tensor random_input(int seed, std::int64_t samples = 4) {
  return random({samples, features}, static_cast<std::uint64_t>(100 + seed));
}

at::Tensor default_random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

TEST(Recompute, HasTheBitsOfAPlainForwardInEveryBackward) {
  for (const auto mode : recomputing) {
    BlockNet plain(Mode::plain, 3), net(mode, 3);
    for (int step = 0; step < 3; ++step) {
      std::vector<at::Tensor> random, inputs, outputs;
      for (BlockNet* one : {&plain, &net}) {
        torch::manual_seed(static_cast<std::uint64_t>(5 + step));
        one->zero_grad();
        inputs.push_back(random_input(step).requires_grad_());
        const auto output = one->forward(inputs.back());
        outputs.push_back(output);
        // Draws between the forward and each backward of the retained graph, and after it.
        const auto loss = output.square().sum() * at::rand({2}).sum();
        for (const bool retained : {true, true, false}) {
          loss.backward({}, retained);
          at::rand({3});
        }
        random.push_back(default_random_state());
      }
      EXPECT_TRUE(at::equal(outputs[0], outputs[1]));
      EXPECT_TRUE(at::equal(random[0], random[1]));
      EXPECT_TRUE(at::equal(inputs[0].grad(), inputs[1].grad()));
      expect_same_state(net, plain);
    }
  }
}

TEST(Recompute, KeepsNoTensorOfTheSegment) {
  for (const auto mode : {Mode::plain, Mode::each, Mode::nested}) {
    BlockNet net(mode, 2);
    const auto output = net.forward(random_input(1).requires_grad_());
    for (const auto& block : net.blocks) {
      EXPECT_EQ(block->inner.expired(), mode != Mode::plain);
      EXPECT_EQ(block->calls, 1);
    }
    output.sum().backward();
    // The outer segment of a nested one gives the inner one its inputs.
    const int calls = mode == Mode::plain ? 1 : mode == Mode::each ? 2 : 3;
    for (const auto& block : net.blocks) {
      EXPECT_EQ(block->calls, calls);
      EXPECT_TRUE(mode == Mode::nested || block->inner.expired());
    }
    // It just runs without gradients.
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(net.forward(random_input(1)).requires_grad());
    EXPECT_EQ(net.blocks[0]->calls, calls + 1);
  }
}

TEST(Recompute, TakesModulesCallablesAndOtherArguments) {
  const auto linear = std::make_shared<torch::nn::LinearImpl>(features, features);
  torch::nn::Sequential several(torch::nn::Linear(features, features), torch::nn::ReLU());
  const auto x = random_input(1);
  EXPECT_TRUE(at::equal(recompute(linear, x), linear->forward(x)));
  EXPECT_TRUE(at::equal(recompute(several, x), several->forward(x)));
  const auto mask = at::arange(features);
  auto factor = at::full({}, 2.0).requires_grad_();
  const auto [sum, list, none] = recompute(
      [](const at::Tensor& a, double scale, const at::Tensor& indices, const at::Tensor& by,
         const at::Tensor& undefined) {
        return std::tuple(a.index_select(1, indices).sin() * scale,
                          std::vector<at::Tensor>{a * by, by.exp()}, undefined);
      },
      x, 0.5, mask, factor, at::Tensor());
  EXPECT_FALSE(none.defined());
  (sum.sum() + list[0].sum() + list[1]).backward();
  EXPECT_TRUE(near(factor.grad(), x.sum() + factor.detach().exp()));
}

TEST(Recompute, CanBeDifferentiatedTwice) {
  std::vector<at::Tensor> gradients;
  for (const bool again : {false, true}) {
    const auto x = random_input(1).requires_grad_();
    const auto function = [](const at::Tensor& y) { return (y.sin() * y).tanh(); };
    const auto y = again ? recompute(function, x) : function(x);
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, {}, /*create_graph=*/true)[0];
    first.square().sum().backward();
    gradients.push_back(x.grad());
  }
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

TEST(Recompute, RunsInTheAutocastStateOfTheForward) {
  BlockNet plain(Mode::plain, 2), net(Mode::each, 2);
  for (int step = 0; step < 2; ++step) {
    for (BlockNet* one : {&plain, &net}) {
      torch::manual_seed(3);
      one->zero_grad();
      at::Tensor output;
      {
        const Autocast lower;
        output = one->forward(random_input(step));
      }
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      output.to(at::kFloat).square().sum().backward();
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      // A cast of this value that stayed in autocast's cache would be used in the next step.
      const at::NoGradGuard no_grad;
      for (auto& parameter : one->parameters()) parameter -= 0.1 * parameter.grad();
    }
    expect_same_state(net, plain);
  }
}

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Recompute, RestoresAllStateAfterAnException) {
  auto count = at::zeros({1});
  bool fails = false;
  const auto segment = [&](const at::Tensor& x) {
    count += 1;
    const auto y = x.exp() * at::rand({features});
    if (fails) throw Failure("in the segment");
    return y.exp();
  };
  const RecomputeOptions options{.buffers = {count}};
  const auto x = random_input(1).requires_grad_();
  fails = true;
  EXPECT_THROW(recompute(options, segment, x), Failure);
  x.exp().sum().backward();  // saves its tensors as always
  fails = false;
  count.zero_();
  const auto y = recompute(options, segment, x);
  fails = true;
  const auto before = default_random_state();
  {
    const Autocast lower;
    EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), Failure);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_TRUE(at::equal(default_random_state(), before));
  EXPECT_EQ(count.item<float>(), 1);
  fails = false;
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(count.item<float>(), 1);
}

TEST(Recompute, RefusesASegmentThatDiffersInItsSecondForwardOrHasABackward) {
  const auto x = random_input(1).requires_grad_();
  // Another thread draws from the generator that threads share.
  int calls = 0;
  const auto drawing = recompute(
      [&](const at::Tensor& y) {
        if (++calls == 2) std::thread([] { at::rand({1}); }).join();
        return (y * at::rand({features})).exp();
      },
      x);
  EXPECT_THAT(
      refusal([&] { drawing.sum().backward(); }),
      HasSubstr("recompute: got other outputs from the second forward than from the first"));
  calls = 0;
  const auto growing = recompute(
      [&](at::Tensor y) {
        for (int i = 0; i <= calls; ++i) y = y.exp();
        ++calls;
        return y;
      },
      x);
  EXPECT_THAT(refusal([&] { growing.sum().backward(); }),
              HasSubstr("recompute: got 2 saved tensors in the second forward, expected 1"));
  const auto differentiate = [](const at::Tensor& y) {
    return torch::autograd::grad({y.exp().sum()}, {y}, {}, {}, true)[0];
  };
  EXPECT_THAT(refusal([&] { recompute(differentiate, x); }),
              HasSubstr("recompute: got a backward within the segment's forward"));
}

/// A buffer that a segment changes and then multiplies by.
struct ScaledImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    {
      const at::NoGradGuard no_grad;
      scale.mul_(2);
    }
    return x * scale;
  }
  at::Tensor scale = register_buffer("scale", at::full({features}, 1.5));
};
TORCH_MODULE(Scaled);

TEST(Recompute, RefusesTensorsThatWereChangedInPlace) {
  const auto weight = at::ones({features}).requires_grad_();
  const auto function = [&](const at::Tensor& y) { return (y * weight).exp() * weight; };
  const auto x = random_input(1).requires_grad_();
  const auto of_weight = recompute(function, x);
  {
    const at::NoGradGuard no_grad;
    weight.add_(1);
  }
  EXPECT_THAT(refusal([&] { of_weight.sum().backward(); }),
              HasSubstr("changed in place after autograd saved it"));
  const auto input = x * 2;
  const auto of_input = recompute(function, input);
  input.add_(1);
  EXPECT_THAT(message_of<std::exception>([&] { of_input.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
  // In the segment, as autograd refuses it without recompute().
  const auto inside = recompute(
      [](const at::Tensor& y) {
        const auto z = y.exp();
        const auto result = z.sin();
        z.add_(1);
        return result;
      },
      x);
  EXPECT_THAT(refusal([&] { inside.sum().backward(); }),
              HasSubstr("changed in place after autograd saved it"));
  // By another forward.
  for (const bool recomputes : {false, true}) {
    Scaled module;
    x.mutable_grad().reset();
    const auto forward = [&] { return recomputes ? recompute(module, x) : module(x); };
    const auto first = forward(), second = forward();
    const auto error = message_of<std::exception>([&] { first.sum().backward(); });
    EXPECT_THAT(error, AnyOf(HasSubstr("modified by an inplace operation"),
                             HasSubstr("changed in place after autograd saved it")))
        << recomputes;
    x.mutable_grad().reset();
    second.sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), module->scale.expand_as(x))) << recomputes;
  }
}

TEST(Recompute, LeavesTheVersionsOfBuffersAndPlainBatchNormsOfCallables) {
  Scaled module;
  const auto x = random_input(1).requires_grad_();
  const auto weight = at::ones({features}).requires_grad_();
  // The graph outside of the segment saves the buffer, too.
  (recompute(module, x) * weight * module->scale).sum().backward();
  const auto square = at::full({features}, 9.0);
  EXPECT_TRUE(at::allclose(x.grad(), square.expand_as(x)));
  EXPECT_TRUE(at::allclose(weight.grad(), x.detach().sum(0) * square));
  const auto y = recompute(module, x);
  const auto later = (weight * module->scale).sum();
  y.sum().backward();
  weight.mutable_grad().reset();
  later.backward();
  EXPECT_TRUE(at::equal(weight.grad(), module->scale));
  torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(features).momentum(0.3));
  const auto output =
      recompute([&](const at::Tensor& input) { return norm->forward(input).exp(); }, x);
  const auto mean = norm->running_mean.clone(), variance = norm->running_var.clone();
  output.sum().backward();
  EXPECT_TRUE(at::equal(norm->running_mean, mean));
  EXPECT_TRUE(at::equal(norm->running_var, variance));
}

/// The samples of a rank, of different number.
at::Tensor part_of_rank(const Group& group, int step) {
  return random_input(10 * step + group.rank(), 3 + group.rank());
}

TEST(Recompute, HasTheBitsOfAPlainForwardUnderDistributedDataParallel) {
  for (const int n : {1, 2, 3}) {
    on_ranks(n, [](const Group& world) {
      const auto norms = world.split(0);
      for (const auto mode : recomputing) {
        const auto plain = std::make_shared<BlockNet>(Mode::plain, 2, norms);
        const auto net = std::make_shared<BlockNet>(mode, 2, norms);
        const DataParallelOptions options{.buckets = {.first = 0, .rest = 0},
                                          .buffer_policy = BufferPolicy::none};
        DistributedDataParallel plain_ddp(plain, world, options), ddp(net, world, options);
        torch::optim::SGD plain_sgd(plain->parameters(), 0.1), sgd(net->parameters(), 0.1);
        const auto train = [&](auto& wrapper, auto& optimizer, int step) {
          optimizer.zero_grad();
          {
            const auto alone = wrapper.no_sync();
            wrapper(part_of_rank(world, step)).square().sum().backward();
          }
          wrapper(part_of_rank(world, step + 1)).square().sum().backward();
        };
        // Batch norms use the statistics of the first forward again.
        const auto collectives = [&] {
          std::uint64_t count = 0;
          for (const auto& entry : norms.statistics()) count += entry.count;
          return count;
        };
        for (int step = 0; step < 3; ++step) {
          const auto before = collectives();
          train(plain_ddp, plain_sgd, step);
          const auto of_plain = collectives() - before;
          train(ddp, sgd, step);
          if (step > 0) {
            EXPECT_EQ(collectives() - before, 2 * of_plain);
            EXPECT_TRUE(of_plain > 0 || world.size() == 1);
          }
          expect_same_state(*net, *plain);
          plain_sgd.step();
          sgd.step();
        }
        EXPECT_TRUE(at::equal(net->generator.get_state(), plain->generator.get_state()));
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
