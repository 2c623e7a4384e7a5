// A graph that has saved a parameter is refused once the parameter has changed, whoever changed it.
#include "lockstep/fused_optimizers.h"
#include "lockstep/strategies.h"
#include "tests/message_of.h"
#include "tests/parallel/models.h"

namespace lockstep::testing {
namespace {

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
}  // namespace lockstep::testing
