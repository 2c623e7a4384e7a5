#include "lockstep/differentiable.h"

#include <torch/torch.h>

#include "lockstep/activation_checkpoint.h"
#include "tests/group/on_threads.h"

namespace lockstep::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

/// A differentiable collective, and the same function of all ranks' tensors in one process.
struct Form {
  const char* name;
  std::function<torch::Tensor(const torch::Tensor&, const Group&)> on_ranks;
  std::function<torch::Tensor(const Tensors&, std::size_t rank)> in_one_process;
  bool has_parts = false;  ///< the first dimension is divided among the ranks
};

torch::Tensor sum_of(const Tensors& all) { return torch::stack(all).sum(0); }

/// Root is the last rank.
std::vector<Form> forms() {
  using namespace differentiable;
  using X = const torch::Tensor&;
  using G = const Group&;
  using All = const Tensors&;
  return {
      {"sum", [](X x, G group) { return all_reduce(x, group); },
       [](All all, std::size_t) { return sum_of(all); }},
      {"mean", [](X x, G group) { return all_reduce(x, group, ReduceOp::avg); },
       [](All all, std::size_t) { return sum_of(all) / static_cast<double>(all.size()); }},
      {"all_gather", [](X x, G group) { return all_gather(x, group); },
       [](All all, std::size_t) {
         return all[0].dim() == 0 ? torch::stack(all) : torch::cat(all);
       }},
      {"reduce_scatter", [](X x, G group) { return reduce_scatter(x, group); },
       [](All all, std::size_t rank) {
         return sum_of(all).chunk(static_cast<std::int64_t>(all.size()))[rank];
       },
       /*has_parts=*/true},
      {"broadcast", [](X x, G group) { return broadcast(x, group, group.size() - 1); },
       [](All all, std::size_t) { return all.back(); }},
      {"reduce", [](X x, G group) { return reduce(x, group, group.size() - 1); },
       [](All all, std::size_t rank) {
         return rank + 1 == all.size() ? sum_of(all) : torch::zeros_like(all[rank]);
       }},
  };
}

/// The leaf of a rank; all ranks can compute it.
torch::Tensor leaf_of(std::size_t rank, at::IntArrayRef sizes) {
  const auto numel = c10::multiply_integers(sizes);
  return (torch::arange(numel, at::kDouble) * 0.3 + 0.7 * static_cast<double>(rank))
      .cos()
      .reshape(sizes)
      .requires_grad_();
}

/// The tensor that a rank passes to the collective. It is not contiguous if it has two dimensions.
torch::Tensor input_of(const torch::Tensor& leaf) {
  const auto values = (leaf * 0.5).exp();
  return leaf.dim() == 2 ? values.t() : values;
}

/// A loss that differs between ranks and is not linear.
torch::Tensor loss_of(std::size_t rank, const torch::Tensor& y) {
  return ((1.5 + static_cast<double>(rank)) * y.pow(3)).sum();
}

double distance(const torch::Tensor& got, const torch::Tensor& expected) {
  if (got.sizes() != expected.sizes()) return INFINITY;
  const double norm = expected.norm().item<double>();
  return (got - expected).norm().item<double>() / (norm > 0 ? norm : 1);
}

/// The gradients and second derivatives of every rank's leaf.
struct Derivatives {
  Tensors first, second;
};

/// Zeros for a leaf that was not used.
Tensors gradients_of(const torch::Tensor& loss, const Tensors& leaves) {
  auto gradients = torch::autograd::grad({loss}, leaves, {}, true, true, true);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = torch::zeros_like(leaves[i]);
  }
  return gradients;
}

Derivatives in_one_process(const Form& form, std::size_t ranks, at::IntArrayRef sizes) {
  Tensors leaves, inputs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    leaves.push_back(leaf_of(rank, sizes));
    inputs.push_back(input_of(leaves.back()));
  }
  auto loss = torch::zeros({}, at::kDouble);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    loss = loss + loss_of(rank, form.in_one_process(inputs, rank));
  Derivatives all;
  all.first = gradients_of(loss, leaves);
  auto penalty = torch::zeros({}, at::kDouble);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    penalty = penalty + loss_of(rank, all.first[rank]);
  all.second = gradients_of(penalty, leaves);
  return all;
}

SUITE_ON_RANKS(Differentiable, 1, 2, 3, 4, 7);

TEST_P(Differentiable, DerivativesAreThoseOfOneProcess) {
  const int ranks = GetParam();
  for (const auto& form : forms()) {
    std::vector<std::vector<std::int64_t>> shapes{{3, 4}, {3, 0}, {5}, {}};
    if (form.has_parts) shapes = {{3, 2 * ranks}, {0, ranks}, {0}, {3 * ranks}};
    for (const auto& sizes : shapes) {
      const auto expected = in_one_process(form, static_cast<std::size_t>(ranks), sizes);
      spawn(ranks, [&](const Group& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        const auto leaf = leaf_of(rank, sizes);
        const auto input = input_of(leaf);
        const auto version = input._version();
        const auto y = form.on_ranks(input, world);
        EXPECT_EQ(input._version(), version);
        const auto first = torch::autograd::grad({loss_of(rank, y)}, {leaf}, {}, true, true)[0];
        const auto second = torch::autograd::grad({loss_of(rank, first)}, {leaf})[0];
        EXPECT_LT(distance(first, expected.first[rank]), 1e-12)
            << form.name << at::IntArrayRef(sizes);
        EXPECT_LT(distance(second, expected.second[rank]), 1e-12)
            << form.name << at::IntArrayRef(sizes);
      });
    }
  }
}

TEST_P(Differentiable, ARankWhoseTensorNeedsNoGradientTakesPart) {
  const int ranks = GetParam();
  for (const auto& form : forms()) {
    const std::vector<std::int64_t> sizes{2 * ranks};
    const auto expected = in_one_process(form, static_cast<std::size_t>(ranks), sizes);
    spawn(ranks, [&](const Group& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      const auto leaf = leaf_of(rank, sizes);
      const bool is_constant = rank == 0;
      const auto input = input_of(leaf);
      const auto y = form.on_ranks(is_constant ? input.detach() : input, world);
      EXPECT_TRUE(y.requires_grad());
      loss_of(rank, y).backward();
      EXPECT_EQ(leaf.grad().defined(), !is_constant);
      if (is_constant) return;
      EXPECT_LT(distance(leaf.grad(), expected.first[rank]), 1e-12) << form.name;
    });
  }
}

TEST_P_ON_RANKS(Differentiable, WithoutGradModeRecordsNothing) {
  const torch::NoGradGuard no_grad;
  for (const auto& form : forms()) {
    const auto y = form.on_ranks(torch::ones({2 * world.size()}).requires_grad_(), world);
    EXPECT_FALSE(y.requires_grad()) << form.name;
  }
}

TEST_ON_RANKS(DifferentiableCollectives, RefuseWhatHasNoGradient, 2) {
  const auto refusal = [&](const torch::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
    return testing::refusal([&] { differentiable::all_reduce(tensor, world, op); });
  };
  for (const auto op : {ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
    EXPECT_THAT(refusal(torch::ones({2}), op),
                AllOf(HasSubstr("differentiable::all_reduce: rank"),
                      HasSubstr(std::string(name(op))), HasSubstr("expected sum or avg")));
  }
  EXPECT_THAT(refusal(torch::ones({2}, at::kLong)),
              HasSubstr("expected a dense one of a floating"));
  EXPECT_THAT(refusal(torch::ones({2}).to_sparse()), HasSubstr("layout Sparse"));
  EXPECT_THAT(refusal({}), HasSubstr("undefined"));
  EXPECT_THROW(differentiable::reduce_scatter(torch::ones({3}), world), InvalidArgument);
  EXPECT_THROW(differentiable::reduce_scatter(torch::ones({}), world), InvalidArgument);
  EXPECT_THROW(differentiable::broadcast(torch::ones({3}), world, 2), InvalidArgument);
  EXPECT_EQ(differentiable::all_reduce(torch::ones({}), world).item<float>(), 2);
}

/// The errors of two ranks.
std::vector<std::string> errors(const std::function<void(const Group&)>& fn) {
  std::vector<std::string> texts(2);
  spawn(2, [&](const Group& world) {
    texts[static_cast<std::size_t>(world.rank())] = message_of<CommError>([&] { fn(world); });
  });
  return texts;
}

TEST(DifferentiableCollectives, ABackwardIsNotPairedWithTheNextForward) {
  const auto texts = errors([](const Group& world) {
    const auto weight = torch::ones({4}).requires_grad_();
    for (int step = 0; step < 2; ++step) {
      const auto y = differentiable::all_reduce(weight * 2, world);
      (world.rank() == 0 ? y.sum() : weight.sum()).backward();
    }
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("for the backward of differentiable collective #1"),
                                HasSubstr("let the loss of every rank use"))));
}

TEST(DifferentiableCollectives, BackwardsOfDifferentForwardsAreNotPaired) {
  const auto texts = errors([](const Group& world) {
    const auto weight = torch::ones({4}).requires_grad_();
    const auto first = differentiable::all_reduce(weight * 2, world);
    const auto second = differentiable::all_reduce(weight * 3, world);
    (world.rank() == 0 ? first : second).sum().backward();
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("the backward of differentiable collective #1"),
                                HasSubstr("the backward of differentiable collective #2"))));
}

TEST(DifferentiableCollectives, ARankWithoutABackwardIsNamedAtItsEnd) {
  const auto texts = errors([](const Group& world) {
    const auto y = differentiable::all_reduce(torch::ones({4}).requires_grad_(), world);
    if (world.rank() == 0) y.sum().backward();
  });
  EXPECT_THAT(texts[0], HasSubstr("rank 1 left the world"));
}

TEST_ON_RANKS(DifferentiableCollectives, InARecomputedSegment, 2) {
  const auto weight = torch::full({4}, 0.5 + world.rank(), at::kDouble).requires_grad_();
  const auto segment = [&](const torch::Tensor& x) {
    return differentiable::all_reduce((weight * x).exp(), world).pow(2);
  };
  const auto gradient = [&](const torch::Tensor& y) {
    weight.mutable_grad().reset();
    y.sum().backward();
    return weight.grad().clone();
  };
  const auto x = torch::ones({4}, at::kDouble);
  const auto expected = gradient(segment(x));
  EXPECT_TRUE(torch::equal(gradient(recompute(segment, x)), expected));
}

}  // namespace
}  // namespace lockstep::testing
