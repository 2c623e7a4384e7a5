#include "lockstep/grad_scaler.h"
#include "tests/device/training.h"

// Training in float16 with a GradScaler, on devices and on the CPU.

namespace lockstep::testing::scaled_training {
namespace {

/// Two layers whose forward is in float16.
struct HalfNet : torch::nn::Module {
  explicit HalfNet(at::Device device) {
    register_module("first", first);
    register_module("second", second);
    draw_parameters(*this, 0.2);
    to(device);
  }
  at::Tensor forward(const at::Tensor& input) {
    const auto apply = [](const torch::nn::Linear& layer, const at::Tensor& x) {
      return at::linear(x, layer->weight.to(at::kHalf), layer->bias.to(at::kHalf));
    };
    return apply(second, apply(first, input.flatten(1).to(at::kHalf)).relu()).to(at::kFloat);
  }
  torch::nn::Linear first{64, 8};
  torch::nn::Linear second{8, 10};
};

/// The images of a step. Those of step 2 are infinite on rank 1.
at::Tensor inputs(const Group& group, int step) {
  auto values = images(group.rank(), step);
  if (step == 2 && group.rank() == 1) values.fill_(std::numeric_limits<float>::infinity());
  return values.to(group.device());
}

constexpr int steps = 6;
constexpr GradScalerOptions options{.init_scale = 1024, .growth_interval = 2};

/// Adds the scale to the results. The second step completes a growth interval; the third is
/// skipped.
void expect_scale(const GradScaler& scaler, int step, bool stepped) {
  const std::vector<double> scales{1024, 2048, 1024, 1024, 2048, 2048};
  EXPECT_EQ(stepped, step != 2);
  EXPECT_EQ(scaler.get_scale(), scales[static_cast<std::size_t>(step)]);
}

/// By the wrapper where there is no strategy.
std::vector<at::Tensor> trained(const Group& group, const char* strategy, bool clips) {
  auto net = std::make_shared<HalfNet>(group.device());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::optional<DistributedDataParallel<HalfNet>> ddp;
  std::optional<DistributedOptimizer> optimizer;
  if (strategy == nullptr) ddp.emplace(net, group);
  if (strategy != nullptr) optimizer.emplace(sgd, *net, group, parse_strategy(strategy));
  GradScaler scaler(group, options);
  for (int step = 0; step < steps; ++step) {
    const auto batch = inputs(group, step);
    const auto outputs = ddp ? (*ddp)(batch) : net->forward(batch);
    scaler.scale(loss_of(outputs, group, step)).backward();
    if (clips) {
      scaler.unscale_(*optimizer);
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    }
    const bool stepped = ddp ? scaler.step(sgd) : scaler.step(*optimizer);
    scaler.update();
    expect_scale(scaler, step, stepped);
    ddp ? sgd.zero_grad() : optimizer->zero_grad();
  }
  if (optimizer) optimizer->synchronize();
  return values(*net);
}

// Half precision enlarges differences of rounding.
constexpr double of_nccl = 2e-3;
constexpr double of_gpus = 1e-2;

class ScaledTrainingOnDevices : public ComparedWithCpu {};

TEST_P(ScaledTrainingOnDevices, ByTheWrapperHasTheBitsOfTheCpu) {
  compare([](const Group& group) { return trained(group, nullptr, false); }, of_nccl, of_gpus);
}

TEST_P(ScaledTrainingOnDevices, ByTheOptimizerHasTheBitsOfTheCpu) {
  // Under local_sgd only rank 1 has the infinite gradient, and all ranks skip the step.
  for (const auto* strategy : {"fp32", "local_sgd:period=2"}) {
    for (const bool clips : {false, true}) {
      SCOPED_TRACE(::testing::Message() << strategy << clips);
      compare([&](const Group& group) { return trained(group, strategy, clips); }, of_nccl,
              of_gpus);
    }
  }
}

TEST_P(ScaledTrainingOnDevices, AStepReadsOneNumberOfTheDevice) {
  if (backend() == DeviceBackend::staged) GTEST_SKIP() << "staged exchanges wait for the host";
  if (on_gpus()) GTEST_SKIP() << "counts the waits of the simulated device";
  run([&](const Group& group) {
    HalfNet net(group.device());
    torch::optim::SGD sgd(net.parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, net, group, DataParallelOptions{.verify_every = 0});
    const auto synchronisations = [&](bool scaled) {
      GradScaler scaler(group, {.enabled = scaled});
      const auto input = inputs(group, 0);
      const auto target = targets(group.rank(), 0).to(group.device());
      const auto train = [&] {
        scaler.scale(at::cross_entropy_loss(net.forward(input), target)).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
      };
      train();
      const auto before = simulation::counts(group.rank());
      for (int step = 0; step < 3; ++step) train();
      return (simulation::counts(group.rank()) - before).host_synchronisations;
    };
    const auto without = synchronisations(false);
    EXPECT_EQ(synchronisations(true), without + 3);
  });
}

TEST_P_ON_DEVICES(ScaledTrainingOnDevices, RefusesGradientsOfAnotherDevice) {
  auto parameter = at::ones({2}).requires_grad_();
  parameter.mutable_grad() = at::ones({2});
  torch::optim::SGD sgd({parameter}, 0.1);
  GradScaler scaler(group);
  EXPECT_THROW(scaler.step(sgd), InvalidArgument);
  auto half = at::ones({2}, at::TensorOptions(group.device()).dtype(at::kHalf)).requires_grad_();
  half.mutable_grad() = at::ones_like(half);
  torch::optim::SGD of_half({half}, 0.1);
  EXPECT_THROW(scaler.step(of_half), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Devices, ScaledTrainingOnDevices,
                         ::testing::Combine(both_backends, ::testing::Values(2, 3)), name_of_case);

}  // namespace
}  // namespace lockstep::testing::scaled_training
