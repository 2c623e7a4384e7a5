#include <torch/torch.h>

#include "tests/group/on_threads.h"

// Versions and histories of tensors that collectives write.

namespace lockstep::testing {
namespace {

SUITE_ON_RANKS(WrittenTensors, 1, 2, 3);

torch::Tensor doubles(at::IntArrayRef sizes, double value = 1) {
  return torch::full(sizes, value, at::kDouble);
}

/// A tensor of a graph with this many elements.
torch::Tensor in_graph(std::int64_t elements) { return doubles({elements}).requires_grad_() * 2; }

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

/// An operation, the tensor that it writes and what it reads.
struct Operation {
  std::string name;
  bool all_write;  ///< or rank 0 alone
  bool in_place;
  bool gathers;   ///< two elements of each rank
  bool scatters;  ///< two elements to each rank
  std::function<Work(const Group&, const torch::Tensor& output, const torch::Tensor& input)> issue;

  std::int64_t elements(const Group& world) const { return gathers ? 2 * world.size() : 2; }
  std::int64_t input_elements(const Group& world) const { return scatters ? 2 * world.size() : 2; }
  bool writes_on(const Group& world) const { return all_write || world.rank() == 0; }
};

std::vector<Operation> operations() {
  using G = const Group&;
  using T = const torch::Tensor&;
  const auto recv = [](G group, T out, T) {
    auto sent = group.send(doubles({2}), (group.rank() + 1) % group.size());
    auto received = group.recv(out, (group.rank() + group.size() - 1) % group.size());
    sent.wait();
    return received;
  };
  return {
      {"all_reduce", true, true, false, false, [](G g, T out, T) { return g.all_reduce(out); }},
      {"reduce", false, true, false, false, [](G g, T out, T) { return g.reduce(out); }},
      {"broadcast", true, true, false, false, [](G g, T out, T) { return g.broadcast(out); }},
      {"all_gather", true, false, true, false,
       [](G g, T out, T in) { return g.all_gather(out, in); }},
      {"reduce_scatter", true, false, false, true,
       [](G g, T out, T in) { return g.reduce_scatter(out, in); }},
      {"gather", false, false, true, false, [](G g, T out, T in) { return g.gather(out, in); }},
      {"scatter", true, false, false, true, [](G g, T out, T in) { return g.scatter(out, in); }},
      {"all_to_all", true, false, true, true,
       [](G g, T out, T in) { return g.all_to_all(out, in); }},
      {"recv", true, true, false, false, recv},
  };
}

TEST_P_ON_RANKS(WrittenTensors, OfAGraphCanBeReadButNotDifferentiated) {
  for (const auto& operation : operations()) {
    SCOPED_TRACE(operation.name);
    const bool is_written = operation.writes_on(world);
    const auto output = in_graph(operation.elements(world));
    const auto input = doubles({operation.input_elements(world)});
    const auto version = output._version();
    operation.issue(world, output, input).wait();
    EXPECT_EQ(output._version(), version + (is_written ? 1 : 0));
    EXPECT_EQ(input._version(), 0);
    EXPECT_GT(output.sum().item<double>(), 0);
    EXPECT_FALSE((output * 0).detach().requires_grad());
    const auto error = error_of([&] { output.sum().backward(); });
    if (!is_written) {
      EXPECT_EQ(error, "none");
      continue;
    }
    EXPECT_THAT(error,
                AllOf(HasSubstr(operation.name + " rank"), HasSubstr("got a backward through"),
                      HasSubstr("differentiable::all_reduce"), HasSubstr("detach()")));
  }
}

TEST_P_ON_RANKS(WrittenTensors, OfAnInputWithAGradientCanBeReadButNotDifferentiated) {
  for (const auto& operation : operations()) {
    if (operation.in_place) continue;
    SCOPED_TRACE(operation.name);
    const auto output = doubles({operation.elements(world)});
    for (int step = 0; step < 2; ++step) {  // into the same output
      const auto input = in_graph(operation.input_elements(world));
      operation.issue(world, output, input).wait();
      const bool reads = operation.name != "scatter" || world.rank() == 0;
      const bool has_graph = reads && operation.writes_on(world);
      EXPECT_GT(output.sum().item<double>(), 0);
      EXPECT_EQ(output.requires_grad(), has_graph);
      EXPECT_EQ(error_of([&] { input.sum().backward(); }), "none");
      if (!has_graph) continue;
      EXPECT_THAT(error_of([&] { (output * in_graph(1)).sum().backward(); }),
                  HasSubstr(operation.name + " rank"));
    }
  }
}

TEST_P_ON_RANKS(WrittenTensors, ThatAGraphHasSavedRaiseLibTorchsError) {
  for (const auto& operation : operations()) {
    const auto saved = doubles({operation.elements(world)}, 3);
    const auto product = doubles({1}).requires_grad_() * saved;
    operation.issue(world, saved, doubles({operation.input_elements(world)})).wait();
    EXPECT_THAT(error_of([&] { product.sum().backward(); }),
                operation.writes_on(world) ? HasSubstr("modified by an inplace operation")
                                           : HasSubstr("none"))
        << operation.name;
  }
}

TEST_P_ON_RANKS(WrittenTensors, TheErrorIsThereBeforeTheOperationEnds) {
  const auto output = in_graph(2);
  auto work = world.all_reduce(output);
  EXPECT_THAT(error_of([&] { output.sum().backward(); }), HasSubstr("all_reduce rank"));
  work.wait();
}

TEST_P_ON_RANKS(WrittenTensors, LeavesStayLeaves) {
  const auto weight = doubles({2, 3}, world.rank() + 1).requires_grad_();
  const auto version = weight._version();
  world.broadcast(weight).wait();
  world.broadcast(weight[1]).wait();
  world.all_reduce(weight.view({6}), ReduceOp::avg).wait();
  {
    const torch::NoGradGuard no_grad;
    world.broadcast(weight).wait();
    world.broadcast(weight.view({-1})).wait();
  }
  EXPECT_EQ(weight._version(), version + 5);
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
  EXPECT_TRUE(torch::equal(weight, doubles({2, 3})));
  (weight * weight).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), doubles({2, 3}, 2)));
}

TEST_P_ON_RANKS(WrittenTensors, ViewsChangeTheHistoryOfTheirBase) {
  const auto whole = in_graph(6).view({2, 3});
  const auto other = whole * 2;
  world.all_reduce(whole[1]).wait();
  EXPECT_EQ(whole[0].sum().item<double>(), 6);
  EXPECT_EQ(whole[1].sum().item<double>(), 6 * world.size());
  EXPECT_THAT(error_of([&] { whole.sum().backward(); }), HasSubstr("all_reduce rank"));
  EXPECT_EQ(error_of([&] { other.sum().backward(); }), "none");
}

TEST_P_ON_RANKS(WrittenTensors, ViewsThatMayNotChangeAreRefused) {
  const auto rows = in_graph(6).view({2, 3}).unbind();
  EXPECT_THAT(error_of([&] { world.all_reduce(rows[1]).wait(); }),
              AllOf(HasSubstr("all_reduce: got a tensor that LibTorch does not let"),
                    HasSubstr("multiple views")));
  const auto sum = doubles({3});
  world.all_reduce(sum).wait();
  EXPECT_TRUE(torch::equal(sum, doubles({3}, world.size())));
}

TEST_P_ON_RANKS(WrittenTensors, WithoutGradModeAreChangedAsByLibTorch) {
  const auto weight = doubles({2}).requires_grad_();
  const auto sum = weight + 1;
  const auto power = weight.exp();
  {
    const torch::NoGradGuard no_grad;
    world.all_reduce(sum).wait();
    world.all_reduce(power).wait();
  }
  sum.sum().backward();  // needs no value
  EXPECT_TRUE(torch::equal(weight.grad(), doubles({2})));
  EXPECT_THAT(error_of([&] { power.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST_P_ON_RANKS(WrittenTensors, OfInferenceMode) {
  at::Tensor sum;
  {
    const c10::InferenceMode inference;
    sum = doubles({2});
    world.all_reduce(sum).wait();
  }
  world.all_reduce(sum).wait();
  EXPECT_EQ(sum[0].item<double>(), world.size() * world.size());
  const auto gathered = doubles({world.size()});
  world.all_gather(gathered, doubles({1}).requires_grad_()).wait();
  EXPECT_EQ(gathered.sum().item<double>(), world.size());
}

TEST_P_ON_RANKS(WrittenTensors, ALossMayBeAveragedAfterItsBackward) {
  const auto weight = doubles({3}, world.rank()).requires_grad_();
  const auto all = doubles({world.size()});
  double total = 0;
  for (int step = 0; step < 3; ++step) {
    auto loss = (weight * weight).sum();
    loss.backward();
    world.all_gather(all, loss.view({1})).wait();
    world.all_reduce(loss, ReduceOp::avg).wait();
    total += loss.item<double>() - all.mean().item<double>();
  }
  EXPECT_NEAR(total, 0, 1e-12);
  EXPECT_TRUE(torch::equal(weight.grad(), doubles({3}, 6 * world.rank())));
}

}  // namespace
}  // namespace lockstep::testing
