// Lockstep's ranks and those of PyTorch's own DistributedDataParallel in Python, from the same
// start with the same data, end with the same parameters. reference.py is the other side. Both use
// the CPU, or GPUs and NCCL: tests/gpus.h.
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/cuda.h>
#include <torch/script.h>

#include <map>

#include "core/system/denormals_guard.h"
#include "lockstep/denormals.h"
#include "lockstep/model_files.h"
#include "lockstep/strategies.h"
#include "tests/gpus.h"
#include "tests/parallel/models.h"
#include "tests/python.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

constexpr int steps = 50;
constexpr int ranks = 2;
constexpr double tolerance = 1e-5;
constexpr double tolerance_of_gpus = 1e-4;

/// Runs fn on the ranks. On GPUs, each has one of its own.
void on_parity_ranks(const std::function<void(Group)>& fn) {
  if (!on_gpus()) return on_ranks(ranks, fn);
  compute_exactly();
  spawn(ranks, fn, {.device = at::kCUDA});
}

class Parity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TemporaryFolder>();
    if (on_gpus() && static_cast<int>(torch::cuda::device_count()) < ranks) {
      missing = "needs 2 GPUs";
      return;
    }
    const auto answer = python("tests/parity/reference.py", {folder->path().string()});
    if (answer.is_missing()) {
      missing = "no PyTorch to compare with: " + answer.text;
    } else if (answer.code != 0) {
      failed = "reference.py failed: " + answer.text;
    }
  }
  static void TearDownTestSuite() { folder.reset(); }

  void SetUp() override {
    if (!missing.empty()) GTEST_SKIP() << missing;
    ASSERT_EQ(failed, "");
  }

  static inline std::unique_ptr<TemporaryFolder> folder;
  static inline std::string missing, failed;
};

/// The tensors of a file of reference.py.
std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& file) {
  const c10::IValue content = read_torch_file(file);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : content.toGenericDict())
    tensors[item.key().toStringRef()] = item.value().toTensor();
  return tensors;
}

/// Copies of a model's parameters and buffers, by Python's names.
std::map<std::string, at::Tensor> state_of(const ModelView& model) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : model.parameters()) state[name] = tensor.detach().cpu().clone();
  for (const auto& [name, tensor] : model.buffers()) state[name] = tensor.cpu().clone();
  return state;
}

/// takes_turn: the model takes another branch on each rank and in each step.
void expect_parity(const std::filesystem::path& of_model, double rate, bool takes_turn = false) {
  const auto kept = tensors_of(of_model.string() + ".pt");
  on_parity_ranks([&](const Group& world) {
    ASSERT_EQ(flushes_denormals(), lockstep::detail::can_flush_denormals) << "reference.py does";
    // Its operators one by one, as in Python.
    const torch::jit::GraphOptimizerEnabledGuard not_fused(false);
    const int rank = world.rank();
    auto model = torch::jit::load(of_model.string() + ".script.pt", world.device());
    const auto start = state_of(model);
    // Only rank 0 begins where PyTorch did: it gives its start to the others.
    const ModelView view(model);
    for (const auto& tensors : {view.parameters(), view.buffers()})
      for (const auto& each : tensors) each.tensor.detach().mul_(1 + rank).add_(rank);
    DistributedDataParallel ddp(model, world);
    torch::optim::SGD sgd(lockstep::parameters(model),
                          torch::optim::SGDOptions(rate).momentum(0.9).weight_decay(1e-4));
    const at::Tensor inputs = kept.at("input/" + std::to_string(rank)).to(world.device());
    const at::Tensor targets = kept.at("target/" + std::to_string(rank)).to(world.device());
    ASSERT_EQ(inputs.size(0), steps);
    for (int step = 0; step < steps; ++step) {
      sgd.zero_grad();
      const auto output = takes_turn ? ddp(inputs[step], step + rank) : ddp(inputs[step]);
      torch::nn::functional::cross_entropy(output.toTensor(), targets[step]).backward();
      sgd.step();
    }
    const auto end = state_of(model);
    for (const auto& [name, tensor] : end) {
      const at::Tensor& expected = kept.at("end/" + name);
      EXPECT_LT(distance(tensor.to(at::kDouble), expected.to(at::kDouble)),
                on_gpus() ? tolerance_of_gpus : tolerance)
          << name << " of rank " << rank;
    }
    for (const auto& [name, tensor] : view.parameters())
      EXPECT_GT(distance(start.at(name), kept.at("end/" + name)), 100 * tolerance) << name;
    const auto is_end = [](const auto& entry) { return entry.first.starts_with("end/"); };
    EXPECT_EQ(std::ssize(end), std::ranges::count_if(kept, is_end));
  });
}

TEST_F(Parity, ResNet18WithItsBatchNormBuffers) { expect_parity(*folder / "resnet18", 0.01); }
TEST_F(Parity, TransformerWithATiedEmbedding) { expect_parity(*folder / "transformer", 0.05); }
TEST_F(Parity, BranchesUsedInTurn) { expect_parity(*folder / "branches", 0.05, true); }

/// Numbers that both sides make alike.
at::Tensor wave(double start, at::IntArrayRef sizes) {
  const auto places = at::arange(c10::multiply_integers(sizes), at::kDouble) + 1;
  return at::sin(places * 1.7 + start).to(at::kFloat).reshape(sizes);
}

/// PowerSGD's first factors as the other side has them.
struct WithFirstFactors {
  Strategy strategy;
  std::string text() const { return strategy.text(); }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const {
    auto exchange = strategy.exchange(bucket);
    auto state = exchange->state();
    for (auto& [name, values] : state)
      if (name.ends_with(".q")) values = wave(0, values.sizes());
    exchange->load(state);
    return exchange;
  }
};

/// The parameters of the other side's small network, trained with a strategy in place of a hook.
at::Tensor trained_with(const Strategy& strategy) {
  at::Tensor result;
  on_ranks(ranks, [&](const Group& world) {
    torch::nn::Sequential model(torch::nn::Linear(12, 16), torch::nn::Tanh(),
                                torch::nn::Linear(16, 10));
    {
      const torch::NoGradGuard no_grad;
      double number = 0;
      for (auto& parameter : model->parameters())
        parameter.copy_(wave(number++, parameter.sizes()) * 0.3);
    }
    DistributedDataParallel ddp(model, world, {.strategy = strategy});
    torch::optim::SGD sgd(model->parameters(), 0.1);
    for (int step = 0; step < 30; ++step) {
      sgd.zero_grad();
      const auto output = ddp(wave(10 * step + world.rank(), {8, 12}));
      (output - wave(7 * step + world.rank(), {8, 10})).square().mean().backward();
      sgd.step();
    }
    if (world.rank() > 0) return;
    std::vector<at::Tensor> flat;
    for (const auto& parameter : model->parameters()) flat.push_back(parameter.detach().flatten());
    result = at::cat(flat);
  });
  return result;
}

TEST_F(Parity, StrategiesMatchCommunicationHooks) {
  if (on_gpus()) GTEST_SKIP() << "compared on the CPU";
  const auto file = *folder / "hooks.pt";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "PyTorch's PowerSGD hook needs numpy";
  const auto hooks = tensors_of(file);
  // Their halves are added as halves, ours in float32.
  EXPECT_LE(distance(trained_with(parse_strategy("fp16")), hooks.at("fp16")), 1e-4);
  EXPECT_LE(distance(trained_with(parse_strategy("bf16")), hooks.at("bf16")), 1e-3);
  const WithFirstFactors power_sgd{parse_strategy("warmup:2:power_sgd:rank=2")};
  EXPECT_LE(distance(trained_with(power_sgd), hooks.at("powersgd")), 1e-4);
}

}  // namespace
}  // namespace lockstep::testing
