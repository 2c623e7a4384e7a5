#include "lockstep/sync_batch_norm.h"
#include "tests/device/training.h"

// Batch norms over the samples of all ranks, on devices and on the CPU.

namespace lockstep::testing::normalisation {
namespace {

/// Ranks have 3, 0 and 2 samples.
std::int64_t samples_of(int rank) { return rank == 0 ? 3 : rank == 1 ? 0 : 2; }

/// Output, gradients and running statistics of one layer, on the CPU.
std::vector<at::Tensor> results_of_layer(const Group& group, at::ScalarType dtype) {
  const auto seed = static_cast<std::uint64_t>(group.rank());
  SyncBatchNorm norm(torch::nn::BatchNormOptions(4), group.split(0));
  {
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(at::arange(1, 5, at::kFloat));
    norm->bias.copy_(at::arange(4, at::kFloat));
  }
  norm->to(group.device());
  std::vector<at::Tensor> results;
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto values = random_values({samples_of(group.rank()), 4, 3, 2}, 10 * seed + step) + 5;
    const auto input = values.to(group.device(), dtype).requires_grad_();
    const auto output = norm(input);
    output.to(at::kFloat).square().sum().backward();
    results.push_back(output.detach());
    results.push_back(input.grad());
  }
  for (const auto& tensor : {norm->weight.grad(), norm->bias.grad(), norm->running_mean,
                             norm->running_var, norm->num_batches_tracked}) {
    results.push_back(tensor);
  }
  for (auto& tensor : results) tensor = tensor.cpu();
  return results;
}

/// A model with plain batch norms, among them one without running statistics and parameters.
struct NormNet : torch::nn::Module {
  NormNet() {
    register_module("conv", conv);
    register_module("images", images_norm);
    register_module("values", values_norm);
    register_module("plain", plain_norm);
    register_module("last", last);
    register_module("other", other);
    draw_parameters(*this, 0.3);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = images_norm(conv(input)).relu();
    x = plain_norm(values_norm(x.flatten(1)));
    return uses_other ? last(x) + other(x) : last(x);
  }
  bool uses_other = true;
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 3, 3)};
  torch::nn::BatchNorm2d images_norm{3};
  torch::nn::BatchNorm1d values_norm{12};
  torch::nn::BatchNorm1d plain_norm{
      torch::nn::BatchNorm1dOptions(12).affine(false).track_running_stats(false)};
  torch::nn::Linear last{12, 2};
  torch::nn::Linear other{12, 2};
};

at::Tensor batch(int rank, int step) {
  const auto seed = static_cast<std::uint64_t>(100 * rank + step + 1);
  return random_values({2 + rank, 1, 4, 4}, seed) + rank;
}

std::vector<at::Tensor> trained_with_converted_norms(const Group& group) {
  auto net = std::make_shared<NormNet>();
  // Its gradients are ready before the backward of a batch norm, on the ranks that use it.
  net->uses_other = group.rank() != 1;
  net->to(group.device());
  EXPECT_EQ(convert_sync_batchnorm(*net, group), 3U);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  DistributedDataParallel ddp(net, group, DataParallelOptions{.buckets = {0, 0}});
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    ddp(batch(group.rank(), step).to(group.device())).square().mean().backward();
    sgd.step();
  }
  auto results = values(*net);
  net->eval();
  const torch::NoGradGuard no_grad;
  results.push_back(net->forward(batch(group.rank(), 9).to(group.device())).cpu());
  return results;
}

class NormalisationOnDevices : public ComparedWithCpu {};

TEST_P(NormalisationOnDevices, HasTheResultsOfTheCpu) {
  compare([](const Group& group) { return results_of_layer(group, at::kFloat); }, 1e-6, 1e-3);
  // A half has 11 bits.
  compare([](const Group& group) { return results_of_layer(group, at::kHalf); }, 1e-2, 1e-1);
  // Rounding errors grow from step to step.
  compare(trained_with_converted_norms, 5e-4, 1e-3);
}

TEST_P_ON_DEVICES(NormalisationOnDevices, RefusesAnInputOnTheCpu) {
  SyncBatchNorm norm(torch::nn::BatchNormOptions(4), group.split(0));
  EXPECT_THROW(norm(at::ones({2, 4})), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Devices, NormalisationOnDevices,
                         ::testing::Combine(both_backends, ::testing::Values(2, 3)), name_of_case);

}  // namespace
}  // namespace lockstep::testing::normalisation
