// The wrapper: which models it takes, which outputs, and how long it and the model live.
#include "lockstep/parallel/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/core/error.h"
#include "models.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// What fn throws, which must be an InvalidArgument; "" if nothing.
template <class Fn>
std::string refusal(const Fn& fn) {
  try {
    fn();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

void expect_usable(const Group& world) {
  const auto one = at::ones({1});
  world.all_reduce(one).wait();
  EXPECT_EQ(one.item<float>(), static_cast<float>(world.size()));
}

TEST(Layout, OfParametersAndGradientsMayDiffer) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const Group& world) {
      auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{});
      model->add(at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
      model->add(at::ones({4, 3}).t());
      model->add(at::ones({3, 8}).slice(1, 0, 8, 2));  // with gaps
      model->add(at::ones({}));
      model->add(at::ones({0, 3}));
      model->add(at::ones({1, 7, 1}));
      DistributedDataParallel ddp(model, world, {.buckets = {.first = 256, .rest = 512}});
      for (int step = 0; step < 2; ++step) {
        model->zero_grad();
        auto terms = coefficients(world.rank(), *model);
        // Gradients come in other strides on some ranks.
        if (world.rank() % 2 == 1) {
          terms[0] = terms[0].contiguous(at::MemoryFormat::ChannelsLast);
          terms[1] = terms[1].t().contiguous().t();
          terms[2] = terms[2].t().contiguous().t();
        }
        ddp(terms).backward();
        for (std::size_t i = 0; i < model->p.size(); ++i) {
          EXPECT_TRUE(near(model->p[i].grad(), mean_coefficient(ranks, i, model->p[i]))) << i;
        }
        EXPECT_EQ(model->p[0].grad().strides(), model->p[0].strides());
        EXPECT_EQ(model->p[1].grad().strides(), model->p[1].strides());
      }
    });
  }
}

TEST(Layout, OfAGradientThatTheUserSetMayBeAny) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3, 5}, {2}});
    DistributedDataParallel ddp(model, world);
    const auto terms = coefficients(world.rank(), *model);
    for (int step = 0; step < 2; ++step) {
      model->p[0].mutable_grad() = at::full({5, 3}, 2.0F).t();
      model->p[1].mutable_grad() = at::full({1}, 3.0F).expand({2}).clone();
      ddp(terms).backward();
      EXPECT_TRUE(near(model->p[0].grad(), 2 + mean_coefficient(2, 0, model->p[0])));
      EXPECT_TRUE(near(model->p[1].grad(), 3 + mean_coefficient(2, 1, model->p[1])));
    }
  });
}

TEST(Dtypes, MayBeMixed) {
  on_ranks(3, [](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{});
    const at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kFloat, at::kBFloat16};
    for (const auto dtype : dtypes) model->add(at::ones({5}, dtype));
    DistributedDataParallel ddp(model, world);
    ddp(coefficients(world.rank(), *model)).backward();
    for (std::size_t i = 0; i < model->p.size(); ++i) {
      EXPECT_EQ(model->p[i].grad().scalar_type(), dtypes[i]);
      EXPECT_TRUE(at::allclose(model->p[i].grad(), mean_coefficient(3, i, model->p[i]), 1e-2, 0));
    }
  });
}

TEST(Outputs, OfAnyShapeAreWatched) {
  struct Several : torch::nn::Module {
    using Output =
        std::tuple<std::vector<at::Tensor>, std::pair<int, std::optional<at::Tensor>>, std::string>;
    Output forward(const at::Tensor& x, int which) {
      // The parameter is used in none: only the outputs can tell.
      const auto y = x * 2;
      return {{which == 0 ? y : at::Tensor()},
              {7, which == 1 ? std::optional<at::Tensor>(y.view({-1})) : std::nullopt},
              "text"};
    }
    at::Tensor weight = register_parameter("weight", at::ones({3}));
  };
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Several>();
    DistributedDataParallel ddp(model, world);
    const auto x = at::ones({2, 2}).set_requires_grad(true);
    for (const int which : {0, 1}) {
      const auto [list, pair, text] = ddp(x, which);
      auto loss = (which == 0 ? list[0] : pair.second->relu_()).sum();
      // Rank 1 uses the parameter beside the model, and would wait for ever for a rank that did not
      // take part.
      if (world.rank() == 1) loss = loss + model->weight.sum();
      loss.backward();
      EXPECT_TRUE(near(model->weight.grad(), at::full({3}, 0.5F)));
      model->zero_grad();
    }
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(std::get<0>(ddp(x, 0))[0].requires_grad());
  });
}

TEST(Outputs, OfSequentialAndModuleHolders) {
  on_ranks(2, [](const Group& world) {
    torch::nn::Sequential model(torch::nn::Tanh(), torch::nn::Linear(3, 2));
    DistributedDataParallel ddp(model, world);
    ddp(at::ones({1, 3})).relu_().sum().backward();
    torch::nn::Linear linear(3, 2);
    DistributedDataParallel other(linear, world, {.initial_sync = InitialSync::broadcast});
    EXPECT_EQ(other.module(), linear.ptr());
  });
}

TEST(Start, GivesAllRanksRankZerosParametersAndBuffers) {
  struct Odd : torch::nn::Module {
    at::Tensor forward() { return weight.sum(); }
    at::Tensor weight = register_parameter("weight", at::ones({3, 5}).t());
    at::Tensor frozen = register_parameter("frozen", at::ones({7}), false);
    at::Tensor flags = register_buffer("flags", at::zeros({3}, at::kBool));
    at::Tensor count = register_buffer("count", at::zeros({}, at::kLong));
    at::Tensor complex = register_buffer("complex", at::zeros({2}, at::kComplexDouble));
    at::Tensor empty = register_buffer("empty", at::zeros({0}));
  };
  on_ranks(3, [](const Group& world) {
    for (const int root : {0, 2}) {
      auto model = std::make_shared<Odd>();
      {
        const torch::NoGradGuard no_grad;
        const int mark = world.rank() == root ? 5 : 9;
        model->weight.fill_(mark);
        model->weight[2][1] = 1;
        model->frozen.fill_(mark);
        model->flags[1] = world.rank() == root;
        model->count.fill_(mark);
        model->complex.fill_(mark);
      }
      std::optional<DistributedDataParallel<Odd>> ddp;
      if (root == 0) {
        ddp.emplace(model, world);
      } else {
        broadcast_parameters(*model, world, root);
      }
      EXPECT_EQ(model->weight.sum().item<float>(), 14 * 5 + 1);
      EXPECT_EQ(model->weight[2][1].item<float>(), 1);
      EXPECT_EQ(model->frozen.sum().item<float>(), 35);
      EXPECT_TRUE(model->flags[1].item<bool>());
      EXPECT_FALSE(model->flags[0].item<bool>());
      EXPECT_EQ(model->count.item<int>(), 5);
      EXPECT_EQ(at::real(model->complex)[1].item<double>(), 5);
    }
  });
}

TEST(Start, OfAModelLargerThanOneBroadcast) {
  on_ranks(2, [](const Group& world) {
    torch::nn::Module model;
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 5; ++i) {
      parameters.push_back(model.register_parameter(
          lockstep::detail::concat("p", i), at::full({(3 << 20) + i}, 10.0F * world.rank() + i)));
    }
    broadcast_parameters(model, world);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(parameters[static_cast<std::size_t>(i)].eq(i).all().item<bool>());
    }
    EXPECT_THROW(broadcast_parameters(model, world, 2), InvalidArgument);
    expect_usable(world);
  });
}

TEST(Start, RefusesModelsThatDifferAndNamesTheDifference) {
  on_ranks(3, [](const Group& world) {
    const auto refused = [&](const std::vector<std::vector<std::int64_t>>& shapes,
                             at::ScalarType dtype = at::kFloat) {
      return refusal([&] {
        DistributedDataParallel ddp(std::make_shared<Terms>(shapes, dtype), world);
        ADD_FAILURE() << "was not refused";
      });
    };
    const bool odd_one = world.rank() == 1;
    EXPECT_THAT(
        refused({{3}, {2, odd_one ? 6 : 5}, {odd_one ? 1 : 2}}),
        AllOf(HasSubstr("DistributedDataParallel rank " + std::to_string(world.rank()) + " of 3"),
              HasSubstr("p1 Float [2, 5] on ranks 0, 2"), HasSubstr("p1 Float [2, 6] on rank 1")));
    EXPECT_THAT(
        refused({{3}}, odd_one ? at::kDouble : at::kFloat),
        AllOf(HasSubstr("p0 Float [3] on ranks 0, 2"), HasSubstr("p0 Double [3] on rank 1")));
    EXPECT_THAT(refused(odd_one ? std::vector<std::vector<std::int64_t>>{{3}, {4}}
                                : std::vector<std::vector<std::int64_t>>{{3}}),
                HasSubstr("parameter p1 Float [4] on rank 1"));
    expect_usable(world);
  });
}

TEST(Start, RefusesOptionsStridesAndFrozenParametersThatDiffer) {
  on_ranks(2, [](const Group& world) {
    const bool second = world.rank() == 1;
    const auto model = [] {
      return std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3, 3}, {2}});
    };
    EXPECT_THAT(refusal([&] {
                  DistributedDataParallel ddp(model(), world,
                                              {.buckets = {.first = second ? 1U : 2U}});
                }),
                AllOf(HasSubstr("buckets of 2"), HasSubstr("buckets of 1")));
    EXPECT_THAT(refusal([&] {
                  auto transposed = model();
                  if (second) transposed->p[0].set_data(at::ones({3, 3}).t());
                  DistributedDataParallel ddp(transposed, world);
                }),
                HasSubstr("p0 Float [3, 3] strides [1, 3] on rank 1"));
    EXPECT_THAT(refusal([&] {
                  auto frozen = model();
                  if (second) frozen->p[1].set_requires_grad(false);
                  DistributedDataParallel ddp(frozen, world);
                }),
                HasSubstr("p1 Float [2] frozen on rank 1"));
    expect_usable(world);
  });
}

TEST(Start, TellsAllRanksWhenOneCannot) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3}});
    if (world.rank() == 1) model->p[0].set_requires_grad(false);
    EXPECT_THAT(
        refusal([&] { DistributedDataParallel ddp(model, world); }),
        HasSubstr("an error: the model has no parameter that requires a gradient on rank 1"));
    expect_usable(world);
  });
}

TEST(Start, TellsAllRanksWhenOneHasNoModel) {
  on_ranks(3, [](const Group& world) {
    auto model = world.rank() == 2
                     ? nullptr
                     : std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{2}});
    EXPECT_THAT(refusal([&] { DistributedDataParallel<Terms> ddp(model, world); }),
                AllOf(HasSubstr("got no model on rank 2"), HasSubstr("on ranks 0, 1")));
    expect_usable(world);
    EXPECT_THAT(
        refusal([&] { DistributedDataParallel<Terms> ddp(std::shared_ptr<Terms>(), world); }),
        HasSubstr("got no model"));
    expect_usable(world);
  });
}

TEST(Start, WithTheSameSeedOnlyVerifies) {
  on_ranks(3, [](const Group& world) {
    auto model = std::make_shared<Mlp>();
    set_values(*model, 4);
    const DataParallelOptions options{.initial_sync = InitialSync::same_seed};
    { DistributedDataParallel ddp(model, world, options); }
    {
      const torch::NoGradGuard no_grad;
      if (world.rank() == 2) model->layers[1]->bias[3] += 1e-6;
    }
    EXPECT_THAT(refusal([&] { DistributedDataParallel ddp(model, world, options); }),
                AllOf(HasSubstr("parameter layer1.bias"), HasSubstr("on rank 2")));
    expect_usable(world);
  });
}

TEST(Start, RefusesModelsThatCannotBeWrapped) {
  struct Schedule : AllReduce {
    std::string text() const { return "rarely"; }
    Content content(std::int64_t step, std::size_t, std::size_t) const {
      return step % 10 == 0 ? Content::parameters : Content::nothing;
    }
  };
  on_ranks(2, [](const Group& world) {
    const auto refused = [&](const std::shared_ptr<Terms>& model,
                             const DataParallelOptions& options = {}) {
      return refusal([&] { DistributedDataParallel ddp(model, world, options); });
    };
    const auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3}});
    EXPECT_THAT(refused(model, {.strategy = Schedule{}}),
                AllOf(HasSubstr("rarely"), HasSubstr("DistributedOptimizer")));
    EXPECT_THAT(refused(nullptr), HasSubstr("got no model"));
    EXPECT_THAT(refused(std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{})),
                HasSubstr("no parameter"));
    EXPECT_THAT(refused(std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3}},
                                                at::kComplexFloat)),
                HasSubstr("p0: got ComplexFloat"));
    {
      DistributedDataParallel ddp(model, world);
      EXPECT_THAT(refused(model), HasSubstr("p0: is synchronised by another wrapper"));
      auto outer = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{2}});
      outer->register_module("inner", model);
      EXPECT_THAT(refused(outer), HasSubstr("inner.p0: is synchronised by another wrapper"));
    }
    EXPECT_EQ(refused(model), "");  // once the first is gone
    expect_usable(world);
  });
}

TEST(Model, MayNotChangeItsParametersAfterwards) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3}, {2}});
    DistributedDataParallel ddp(model, world);
    model->add(at::ones({1}));
    EXPECT_THAT(refusal([&] { ddp(coefficients(0, *model)); }),
                HasSubstr("list of parameters has changed at #2"));
    auto other = std::make_shared<Mlp>();
    DistributedDataParallel of_other(other, world);
    other->to(torch::kDouble);
    EXPECT_THAT(refusal([&] { of_other(Mlp::batch(1, 1)); }),
                HasSubstr("layer0.weight has become Double"));
  });
}

TEST(Model, OutlivesItsWrapperAndTheOtherWayRound) {
  on_ranks(2, [](const Group& world) {
    auto model = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3}, {2}});
    auto ddp = std::make_optional<DistributedDataParallel<Terms>>(model, world);
    const auto terms = coefficients(world.rank(), *model);
    ddp->operator()(terms).backward();
    const auto late = ddp->operator()(terms);
    const auto* in_bucket = model->p[0].grad().data_ptr();
    ddp.reset();
    const auto mean = mean_coefficient(2, 0, model->p[0]);
    EXPECT_NE(model->p[0].grad().data_ptr(), in_bucket);
    EXPECT_TRUE(near(model->p[0].grad(), mean));
    // On one rank alone: nothing is synchronised any more.
    if (world.rank() == 0) {
      late.backward();
      model->forward(terms).backward();
      EXPECT_TRUE(near(model->p[0].grad(), mean + 2 * terms[0]));
    }

    auto second = std::make_unique<DistributedDataParallel<Terms>>(model, world);
    const auto parameter = model->p[0];
    model.reset();
    (*second)(terms).backward();
    second.reset();
    EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(Model, SeveralOnOneRank) {
  on_ranks(3, [](const Group& world) {
    auto a = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{3}, {2}});
    auto b = std::make_shared<Terms>(std::vector<std::vector<std::int64_t>>{{5}});
    DistributedDataParallel first(a, world);
    DistributedDataParallel second(b, world);
    for (int step = 1; step <= 2; ++step) {
      (first(coefficients(world.rank(), *a)) + second(coefficients(world.rank(), *b))).backward();
      EXPECT_TRUE(near(a->p[1].grad(), step * mean_coefficient(3, 1, a->p[1])));
      EXPECT_TRUE(near(b->p[0].grad(), step * mean_coefficient(3, 0, b->p[0])));
    }
  });
}

TEST(Buffers, AreRankZerosAfterEachBackward) {
  struct Normalised : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  };
  for (const auto policy : {BufferPolicy::from_rank0, BufferPolicy::none}) {
    on_ranks(3, [&](const Group& world) {
      auto model = std::make_shared<Normalised>();
      DistributedDataParallel ddp(model, world, {.buffer_policy = policy});
      auto reference = torch::nn::BatchNorm1d(4);
      const auto follow = policy == BufferPolicy::none ? world.rank() : 0;
      for (int step = 0; step < 3; ++step) {
        const auto batch = [&](int rank) {
          return random({6, 4}, static_cast<std::uint64_t>(10 * step + rank)) + rank;
        };
        const auto loss = ddp(batch(world.rank())).pow(2).sum();
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
        reference->forward(batch(follow));
        EXPECT_TRUE(torch::equal(model->norm->running_mean, reference->running_mean));
        EXPECT_TRUE(torch::equal(model->norm->running_var, reference->running_var));
        EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), step + 1);
      }
    });
  }
}

TEST(Buffers, MayBeAveraged) {
  struct Mixed : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      single.add_(rank);
      twice.add_(rank);
      count.add_(rank);
      return x * p;
    }
    int rank = 0;
    at::Tensor p = register_parameter("p", at::ones({2}));
    at::Tensor single = register_buffer("single", at::ones({3}));
    at::Tensor twice = register_buffer("twice", at::ones({2, 2}, at::kDouble));
    at::Tensor count = register_buffer("count", at::ones({}, at::kLong));
  };
  on_ranks(3, [](const Group& world) {
    auto model = std::make_shared<Mixed>();
    model->rank = world.rank() + 1;
    DistributedDataParallel ddp(model, world, {.buffer_policy = BufferPolicy::average});
    for (int step = 1; step <= 2; ++step) {
      ddp(at::ones({2})).sum().backward();
      EXPECT_TRUE(near(model->single, at::full({3}, 1.0 + 2 * step, at::kFloat)));
      EXPECT_TRUE(near(model->twice, at::full({2, 2}, 1.0 + 2 * step, at::kDouble)));
      EXPECT_EQ(model->count.item<int>(), 1 + step);  // rank 0's
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
