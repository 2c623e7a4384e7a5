// The wrapper: which layouts, outputs and buffers it takes, and how long it and the model live.
#include "lockstep/distributed_data_parallel.h"

#include <any>
#include <map>

#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

TEST_ON_RANKS(Layout, OfParametersAndGradientsMayDiffer, 2, 3) {
  auto model = make_terms({});
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
    expect_means(*model, world);
    EXPECT_EQ(model->p[0].grad().strides(), model->p[0].strides());
    EXPECT_EQ(model->p[1].grad().strides(), model->p[1].strides());
  }
}

TEST_ON_RANKS(Layout, OfAGradientThatTheUserSetMayBeAny, 2) {
  auto model = make_terms({{3, 5}, {2}});
  DistributedDataParallel ddp(model, world);
  const auto terms = coefficients(world.rank(), *model);
  for (int step = 0; step < 2; ++step) {
    model->p[0].mutable_grad() = at::full({5, 3}, 2.0F).t();
    model->p[1].mutable_grad() = at::full({1}, 3.0F).expand({2}).clone();
    ddp(terms).backward();
    EXPECT_TRUE(near(model->p[0].grad(), 2 + mean_coefficient(2, 0, model->p[0])));
    EXPECT_TRUE(near(model->p[1].grad(), 3 + mean_coefficient(2, 1, model->p[1])));
  }
}

/// A model whose outputs do not depend on its parameter, in some type.
template <class Output>
struct Beside : torch::nn::Module {
  explicit Beside(std::function<Output(const at::Tensor&)> fn) : forward_(std::move(fn)) {}
  Output forward(const at::Tensor& x) { return forward_(x * 2); }
  at::Tensor weight = register_parameter("weight", at::ones({3}));

 private:
  std::function<Output(const at::Tensor&)> forward_;
};

/// Rank 0's loss reaches no parameter; it takes part because its output is watched. Rank 1 uses the
/// parameter beside the model, and would wait for ever for a rank that did not take part.
template <class Output>
void expect_watched(std::function<Output(const at::Tensor&)> wrap,
                    const std::function<at::Tensor(const Output&)>& unwrap) {
  on_ranks(2, [&](const Group& world) {
    auto model = std::make_shared<Beside<Output>>(wrap);
    DistributedDataParallel ddp(model, world);
    const auto x = at::ones({2, 2}).set_requires_grad(true);
    const auto output = ddp(x);
    auto loss = unwrap(output).relu_().sum();
    if (world.rank() == 1) loss = loss + model->weight.sum();
    loss.backward();
    EXPECT_TRUE(near(model->weight.grad(), at::full({3}, 0.5F)));
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(unwrap(ddp(x)).requires_grad());
  });
}

/// An output type of a user's own, which says where its tensors are.
struct Detection {
  at::Tensor boxes, scores;
};
void visit_tensors(const Detection& output, const auto& visit) {
  visit(output.boxes);
  visit(output.scores);
}

/// A handle that returns a new tensor.
struct Later {
  at::Tensor values;
  explicit operator bool() const { return values.defined(); }
  at::Tensor operator*() const { return values; }
};

// Random programs have tuples, vectors, optionals and maps of tensors, none of them nested.
TEST(Outputs, OfAnyShapeAreWatched) {
  using Tuple =
      std::tuple<std::vector<at::Tensor>, std::pair<int, std::optional<at::Tensor>>, std::string>;
  expect_watched<Tuple>(
      [](const at::Tensor& x) {
        return Tuple{{at::Tensor(), x}, {7, std::nullopt}, "text"};
      },
      [](const Tuple& tuple) { return std::get<0>(tuple)[1]; });
  using Map = std::map<std::string, std::vector<at::Tensor>>;
  expect_watched<Map>(
      [](const at::Tensor& x) {
        return Map{{"x", {x}}};
      },
      [](const Map& map) { return map.at("x")[0]; });
  using Pointer = std::shared_ptr<at::Tensor>;
  expect_watched<Pointer>([](const at::Tensor& x) { return std::make_shared<at::Tensor>(x); },
                          [](const Pointer& pointer) { return *pointer; });
  expect_watched<Later>([](const at::Tensor& x) { return Later{x}; },
                        [](const Later& later) { return *later; });
  using Variant = std::variant<int, at::Tensor>;
  expect_watched<Variant>([](const at::Tensor& x) { return Variant(x); },
                          [](const Variant& variant) { return std::get<at::Tensor>(variant); });
  expect_watched<c10::IValue>(
      [](const at::Tensor& x) {
        return c10::IValue(c10::ivalue::Tuple::create(c10::IValue(1), c10::IValue(x)));
      },
      [](const c10::IValue& value) { return value.toTupleRef().elements()[1].toTensor(); });
  expect_watched<std::vector<Detection>>(
      [](const at::Tensor& x) {
        return std::vector<Detection>{{x, {}}};
      },
      [](const std::vector<Detection>& all) { return all[0].boxes; });
}

struct Unknown {
  at::Tensor values;
};

TEST_ON_RANKS(Outputs, OfATypeWithoutKnownTensorsAreRefused, 2) {
  const auto x = at::ones({2}).set_requires_grad(true);
  const auto refused = [&]<class Output>(std::function<Output(const at::Tensor&)> forward) {
    auto model = std::make_shared<Beside<Output>>(forward);
    DistributedDataParallel ddp(model, world);
    const auto text = refusal([&] { ddp(x); });
    const torch::NoGradGuard no_grad;
    ddp(x);
    return text;
  };
  EXPECT_THAT(refused(std::function([](const at::Tensor& y) { return Unknown{y}; })),
              AllOf(HasSubstr("Unknown"), HasSubstr("visit_tensors")));
  EXPECT_THAT(refused(std::function(
                  [](const at::Tensor& y) { return std::make_tuple(y, std::vector<Unknown>{}); })),
              HasSubstr("visit_tensors"));
  EXPECT_THAT(refused(std::function([](const at::Tensor& y) { return std::any(y); })),
              HasSubstr("std::any"));
  EXPECT_THAT(refused(std::function([](const at::Tensor& y) { return y.sum().item<double>(); })),
              HasSubstr("double"));
  EXPECT_THAT(refused(std::function([](const at::Tensor&) {})), HasSubstr("void"));
  expect_usable(world);
}

TEST_ON_RANKS(Outputs, ThatAreLeavesKeepOneHookEach, 1) {
  struct Passes : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x; }
    at::Tensor weight = register_parameter("weight", at::ones({3}));
  };
  auto model = std::make_shared<Passes>();
  DistributedDataParallel ddp(model, world);
  const auto x = at::ones({2}).set_requires_grad(true);
  for (int step = 0; step < 10; ++step) ddp(x).sum().backward();
  EXPECT_EQ(torch::autograd::impl::get_autograd_meta(x)->cpp_hooks_list_->size(), 1U);
  EXPECT_EQ(x.grad().sum().item<float>(), 20);
}

TEST_ON_RANKS(Outputs, OfSequentialAndModuleHolders, 2) {
  torch::nn::Sequential model(torch::nn::Tanh(), torch::nn::Linear(3, 2));
  DistributedDataParallel ddp(model, world);
  ddp(at::ones({1, 3})).relu_().sum().backward();
  torch::nn::Linear linear(3, 2);
  DistributedDataParallel other(linear, world, {.initial_sync = InitialSync::broadcast});
  EXPECT_EQ(other.module(), linear.ptr());
}

TEST_ON_RANKS(Model, OutlivesItsWrapperAndTheOtherWayRound, 2) {
  auto model = make_terms({{3}, {2}});
  auto ddp = std::make_unique<DistributedDataParallel<Terms>>(model, world);
  const auto terms = coefficients(world.rank(), *model);
  (*ddp)(terms).backward();
  const auto late = (*ddp)(terms);
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

  ddp = std::make_unique<DistributedDataParallel<Terms>>(model, world);
  const auto parameter = model->p[0];
  model.reset();
  (*ddp)(terms).backward();
  ddp.reset();
  EXPECT_TRUE(parameter.grad().defined());
}

TEST_ON_RANKS(Model, MayBeOnTheStackOrInAUniquePtr, 2) {
  Terms on_stack(two_shapes);
  auto unique = std::make_unique<Terms>(two_shapes);
  DistributedDataParallel of_stack(on_stack, world), of_unique(unique, world, {.verify_every = 1});
  of_stack(coefficients(world.rank(), on_stack)).backward();
  of_unique(coefficients(world.rank(), *unique)).backward();
  expect_means(on_stack, world);
  expect_means(*unique, world);
  DistributedDataParallel owner(std::make_unique<Terms>(two_shapes), world);
  owner(coefficients(world.rank(), *owner.module())).backward();
  std::unique_ptr<Terms> none;
  EXPECT_THAT(refusal([&] { DistributedDataParallel(none, world); }), HasSubstr("got no model"));
}

TEST_ON_RANKS(Buffers, MayBeAveraged, 3) {
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
  auto model = std::make_shared<Mixed>();
  model->rank = world.rank() + 1;
  DistributedDataParallel ddp(model, world, {.buffer_policy = BufferPolicy::average});
  for (int step = 1; step <= 2; ++step) {
    ddp(at::ones({2})).sum().backward();
    EXPECT_TRUE(near(model->single, at::full({3}, 1.0 + 2 * step, at::kFloat)));
    EXPECT_TRUE(near(model->twice, at::full({2, 2}, 1.0 + 2 * step, at::kDouble)));
    EXPECT_EQ(model->count.item<int>(), 1 + step);  // rank 0's
  }
}

}  // namespace
}  // namespace lockstep::testing
