// Backwards that are out of the ordinary: within one another, ended by an exception.
#include "tests/parallel/models.h"
#include "tests/refusal.h"

namespace lockstep::testing {
namespace {

/// Runs another backward, of leaf · 10, within backward. Autograd does not know that it uses leaf,
/// so that the leaf's gradient in the outer backward may come first.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor* leaf) {
    context->saved_data["leaf"] = *leaf;
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto leaf = context->saved_data["leaf"].toTensor();
    const at::AutoGradMode grad(true);
    (leaf * 10).sum().backward();
    return {gradients[0], at::Tensor()};
  }
};

/// p1 is reached by a backward within the backward, and by the outer one before or after that.
struct WithNested : Terms {
  WithNested() : Terms({{4}, {6}}) {}
  at::Tensor forward(const std::vector<at::Tensor>& terms, bool inner_first, int times = 1) {
    const auto inner = [&] {
      auto result = p[0] * terms[0];
      for (int i = 0; i < times; ++i) result = Nested::apply(result, &p[1]);
      return result.sum();
    };
    const auto outer = [&] { return (p[1] * terms[1]).sum(); };
    // Backward goes through what was computed last first.
    const auto computed_first = inner_first ? outer() : inner();
    return computed_first + (inner_first ? inner() : outer());
  }
};

TEST_ON_RANKS(NestedBackward, IsAveragedAtTheEndOfTheOutermost, 3) {
  for (const auto& options : {DataParallelOptions{}, one_each}) {
    for (const bool inner_first : {false, true}) {
      auto model = std::make_shared<WithNested>();
      DistributedDataParallel ddp(model, world, options);
      for (int step = 1; step <= 2; ++step) {
        ddp(coefficients(world.rank(), *model), inner_first).backward();
        EXPECT_TRUE(near(model->p[0].grad(), step * mean_coefficient(3, 0, model->p[0])));
        EXPECT_TRUE(near(model->p[1].grad(), step * (mean_coefficient(3, 1, model->p[1]) + 10)));
      }
    }
  }
}

// No hook tells a DistributedOptimizer of the outer one: the exchange of the inner one ends first.
TEST_ON_RANKS(NestedBackward, HasTheWeightsOfTheOutermost, 3) {
  for (const int times : {1, 2, 3}) {
    for (const bool all_have_a_loss : {true, false}) {
      auto model = std::make_shared<WithNested>();
      torch::optim::SGD sgd(model->parameters(), 1);
      DistributedOptimizer optimizer(sgd, *model, world);
      const auto backward = [&] {
        model->forward(coefficients(world.rank(), *model), /*inner_first=*/true, times).backward();
      };
      std::vector<at::Tensor> expected;
      for (std::size_t i = 0; i < 2; ++i) {
        const auto mean = (coefficients(1, *model)[i] + 2 * coefficients(2, *model)[i]) / 3;
        expected.push_back(model->p[i].detach() - mean - (i == 1 ? 10 * times : 0));
      }
      optimizer.weight(world.rank());
      if (all_have_a_loss || world.rank() != 0) backward();
      optimizer.step();
      for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(near(model->p[i].detach(), expected[i])) << i;
      // The next one has no weights.
      optimizer.zero_grad();
      backward();
      EXPECT_TRUE(near(model->p[0].grad(), mean_coefficient(3, 0, model->p[0])));
    }
  }
}

TEST(NestedBackward, AfterOnesWithoutIsRefusedWhenItChangesAGradientThatWasSent) {
  const auto errors = errors_of(2, [](const Group& world) {
    auto model = std::make_shared<WithNested>();
    DistributedDataParallel ddp(model, world, one_each);
    const auto terms = coefficients(world.rank(), *model);
    model->Terms::forward(terms).backward();
    ddp(terms, /*inner_first=*/false).backward();
  });
  EXPECT_THAT(errors, Contains(HasSubstr("parameter p1: its gradient changed after it was sent")));
}

/// loss = Σ c·p², whose gradient 2·c·p can be differentiated again.
struct Squares : Terms {
  Squares() : Terms({{4}, {6}}) {}
  at::Tensor forward(const std::vector<at::Tensor>& terms) {
    return (terms[0] * p[0] * p[0]).sum() + (terms[1] * p[1] * p[1]).sum();
  }
};

TEST_ON_RANKS(CreateGraph, AveragesButEndsTheGraphAloud, 3) {
  auto model = std::make_shared<Squares>();
  DistributedDataParallel ddp(model, world);
  const auto terms = coefficients(world.rank(), *model);
  const auto mean = [&](std::size_t i) {
    return 2 * mean_coefficient(3, i, model->p[i]) * model->p[i].detach();
  };
  for (int step = 0; step < 2; ++step) {
    ddp(terms).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(near(model->p[i].grad(), mean(i)));
    // Taken for a constant, the penalty would be left out without a word.
    const auto penalty = model->p[0].grad().square().sum() + model->p[1].sum();
    EXPECT_THAT(refusal([&] { without_sync(ddp, [&] { penalty.backward(); }); }),
                HasSubstr("parameter p0: a backward reached its "
                          "averaged gradient, which has no graph"));
    step == 0 ? model->zero_grad() : model->zero_grad(/*set_to_none=*/false);
  }
  ddp(terms).backward();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(model->p[i].grad().requires_grad());
    EXPECT_TRUE(near(model->p[i].grad(), mean(i)));
  }
}

TEST_ON_RANKS(CreateGraph, OfGradientsTakenByAutogradGradIsAveragedRight, 3) {
  auto model = std::make_shared<Squares>();
  DistributedDataParallel ddp(model, world);
  const auto terms = coefficients(world.rank(), *model);
  const auto gradient = torch::autograd::grad({ddp(terms).sum()}, {model->p[0]}, {}, {}, true)[0];
  gradient.sum().backward();
  EXPECT_TRUE(near(model->p[0].grad(), 2 * mean_coefficient(3, 0, model->p[0])));
}

/// The identity, whose backward gives no gradient.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

// LibTorch calls the hook of the parameter nevertheless.
TEST_ON_RANKS(UndefinedGradient, IsNone, 2) {
  struct Ended : Terms {
    using Terms::Terms;
    at::Tensor forward(const std::vector<at::Tensor>& terms, bool ends) {
      const auto first = ends ? NoGradient::apply(p[0]) : p[0];
      return (first * terms[0]).sum() + (p[1] * terms[1]).sum();
    }
  };
  auto model = std::make_shared<Ended>(two_shapes);
  DistributedDataParallel ddp(model, world, one_each);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    ddp(coefficients(world.rank(), *model), world.rank() == 1).backward();
    EXPECT_TRUE(near(model->p[0].grad(), coefficient(0, 0, model->p[0]) / 2));
    EXPECT_TRUE(near(model->p[1].grad(), mean_coefficient(2, 1, model->p[1])));
  }
}

struct Custom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// total = (p1 · c) + (p0 · c'), where p0's backward comes second and throws if told to.
struct Throwing : Terms {
  Throwing() : Terms({{4}, {6}}) {}
  at::Tensor forward(const std::vector<at::Tensor>& terms, bool fail) {
    auto first = p[0] * terms[0];
    if (fail) {
      first.register_hook([](const at::Tensor&) -> void { throw Custom("in the middle"); });
    }
    return first.sum() + (p[1] * terms[1]).sum();
  }
};

TEST_ON_RANKS(ThrowingBackward, LeavesTheReducerUsableIfNothingWasSent, 3) {
  auto model = std::make_shared<Throwing>();
  DistributedDataParallel ddp(model, world);
  const auto terms = coefficients(world.rank(), *model);
  for (int step = 0; step < 2; ++step) {
    if (world.rank() != 1) {
      EXPECT_THROW(ddp(terms, true).backward(), Custom);
    }
    model->zero_grad();
    ddp(terms, false).backward();
    expect_means(*model, world);
    model->zero_grad();
  }
}

TEST(ThrowingBackward, EndsTheWorldIfSomethingWasSent) {
  const auto errors = errors_of(3, [](const Group& world) {
    auto model = std::make_shared<Throwing>();
    DistributedDataParallel ddp(model, world, one_each);
    // The first backward sends its buckets at its end.
    ddp(coefficients(world.rank(), *model), false).backward();
    ddp(coefficients(world.rank(), *model), world.rank() == 1).backward();
  });
  EXPECT_EQ(errors[1], "in the middle");
  // On a device the backward ends on autograd's thread of that device, maybe after the exception
  // has ended the rank.
  for (const auto& error : {errors[0], errors[2]}) {
    EXPECT_THAT(error, AnyOf(HasSubstr("a backward ended by an exception after 1 of"),
                             HasSubstr("rank 1: in the middle")));
  }
}

}  // namespace
}  // namespace lockstep::testing
