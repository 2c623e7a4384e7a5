#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include "lockstep/distributed_data_parallel.h"
#include "tests/sync/reference.h"
#include "tests/temporary_folder.h"

// The same small network under PyTorch's communication hooks over Gloo, and under strategies.

namespace lockstep::testing {
namespace {

constexpr int hook_steps = 30;

/// Numbers that both sides make alike.
at::Tensor wave(double start, at::IntArrayRef sizes) {
  const auto places = at::arange(c10::multiply_integers(sizes), at::kDouble) + 1;
  return at::sin(places * 1.7 + start).to(at::kFloat).reshape(sizes);
}

struct Network : torch::nn::Module {
  Network()
      : first(register_module("first", torch::nn::Linear(12, 16))),
        second(register_module("second", torch::nn::Linear(16, 10))) {
    const torch::NoGradGuard no_grad;
    double number = 0;
    for (auto& parameter : parameters()) parameter.copy_(wave(number++, parameter.sizes()) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x).tanh()); }
  torch::nn::Linear first, second;
};

/// PowerSGD's first factors as the other side has them.
struct WithFirstFactors {
  Strategy strategy;
  std::string text() const { return strategy.text(); }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const {
    auto exchange = strategy.exchange(bucket);
    auto state = exchange->state();
    for (auto& [name, values] : state) {
      if (name.ends_with(".q")) values = wave(0, values.sizes());
    }
    exchange->load(state);
    return exchange;
  }
};

at::Tensor train(const Strategy& strategy) {
  at::Tensor result;
  spawn(2, [&](const Group& group) {
    at::set_num_threads(1);
    auto model = std::make_shared<Network>();
    DistributedDataParallel ddp(model, group, {.strategy = strategy});
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < hook_steps; ++step) {
      sgd.zero_grad();
      const auto output = ddp(wave(10 * step + group.rank(), {8, 12}));
      const auto target = wave(7 * step + group.rank(), {8, 10});
      (output - target).square().mean().backward();
      sgd.step();
    }
    if (group.rank() > 0) return;
    std::vector<at::Tensor> flat;
    for (const auto& parameter : model->parameters()) flat.push_back(parameter.detach().flatten());
    result = at::cat(flat);
  });
  return result;
}

/// Parameters by the name of the hook, as the script prints them.
std::map<std::string, at::Tensor> run_hooks(const std::string& python) {
  const TemporaryFolder folder;
  const auto command = lockstep::detail::concat(
      '"', python, "\" -B \"", LOCKSTEP_SOURCE_DIR, "/tests/sync/communication_hooks.py\" \"",
      folder.path().string(), "\" > \"", (folder.path() / "out").string(), '"');
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::map<std::string, at::Tensor> hooks;
  std::ifstream out(folder.path() / "out");
  for (std::string line; std::getline(out, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<float> values;
    for (std::string word; words >> word;) values.push_back(std::strtof(word.c_str(), nullptr));
    hooks[name] = at::tensor(values);
  }
  return hooks;
}

TEST(CommunicationHooks, AreMatched) {
  const std::string python = LOCKSTEP_TORCH_PYTHON;
  if (!std::filesystem::exists(python)) {
    GTEST_SKIP() << "no python beside this LibTorch, looked for " << python;
  }
  if (std::system(('"' + python + "\" -c 'import torch, numpy' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << python << " has no torch, or no numpy, which PyTorch's PowerSGD hook needs";
  }
  const auto hooks = run_hooks(python);
  const auto expect_near = [&](const char* name, const Strategy& strategy, double tolerance) {
    ASSERT_TRUE(hooks.contains(name));
    const auto& expected = hooks.at(name);
    const auto got = train(strategy);
    EXPECT_LE((got - expected).norm().item<double>(), tolerance * expected.norm().item<double>())
        << name;
  };
  expect_near("fp32", parse_strategy("fp32"), 1e-5);
  // Their halves are added as halves, ours in float32.
  expect_near("fp16", parse_strategy("fp16"), 1e-4);
  expect_near("bf16", parse_strategy("bf16"), 1e-3);
  expect_near("powersgd", WithFirstFactors{parse_strategy("warmup:2:power_sgd:rank=2")}, 1e-4);
}

}  // namespace
}  // namespace lockstep::testing
