// Trains a small model for 50 steps by every strategy, and prints a digest of all ranks' parameters
// for each. Two versions of Lockstep that give the same digests on one machine compute the same
// bits. bench/train/strategy_digests.py runs it on all backends and compares two builds.

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "core/numeric/digest.h"
#include "models.h"

namespace lockstep::bench::strategy_digests {
namespace {

constexpr int steps = 50;

constexpr const char* strategies[] = {"fp32",
                                      "fp16",
                                      "fp16:clip=1",
                                      "bf16",
                                      "topk:0.05",
                                      "topk:0.05,feedback=off",
                                      "threshold:0.01",
                                      "threshold:0.01,feedback=off",
                                      "int8",
                                      "int8:feedback=off",
                                      "power_sgd:rank=2",
                                      "power_sgd:rank=2,feedback=off",
                                      "partial_update",
                                      "partial_update:of=gradients",
                                      "local_sgd:period=4",
                                      "post_local_sgd:start=10,period=4",
                                      "adasum",
                                      "adasum:of=gradients",
                                      "warmup:10:topk:0.05"};

std::uint64_t train(const std::string& strategy, const lockstep::Group& world) {
  torch::nn::Sequential model(torch::nn::Linear(40, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 33), torch::nn::Tanh(),
                              torch::nn::Linear(33, 10));
  set_parameters(*model);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  lockstep::DistributedOptimizer optimizer(
      sgd, *model, world,
      {.buckets = {.first = 1'000, .rest = 8'000}, .strategy = lockstep::parse_strategy(strategy)});
  for (int step = 0; step < steps; ++step) {
    const auto inputs = random_numbers({8, 40}, 1'000 * step + world.rank());
    const auto loss = model->forward(inputs).square().mean();
    optimizer.backward_and_update(loss);
  }
  std::vector<std::uint64_t> digests;
  for (const auto& parameter : model->parameters()) {
    const auto mine = parameter.detach().contiguous();
    const auto all = at::empty({world.size() * mine.numel()});
    world.all_gather(all, mine.flatten()).wait();
    digests.push_back(digest(all));
  }
  return lockstep::detail::digest(std::as_bytes(std::span(digests)));
}

}  // namespace

std::function<void()> program(CLI::App& /*command*/) {
  return [] {
    at::set_num_threads(1);
    const auto world = lockstep::init();
    for (const std::string strategy : strategies) {
      const auto digest = train(strategy, world);
      if (world.rank() == 0) std::cout << strategy << ' ' << std::hex << digest << std::endl;
    }
  };
}

}  // namespace lockstep::bench::strategy_digests
