#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/environment.h"
#include "core/launcher.h"
#include "core/text.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "lockstep/init.h"
#include "tests/on_ranks.h"
#include "tests/refusal.h"

namespace lockstep::testing {

/// A bucket for every parameter, for the largest number of outstanding collectives.
inline const DataParallelOptions one_each{.buckets = {.first = 0, .rest = 0}};

/// Every way in which ranks divide or share an update, or none.
inline const DataParallelOptions every_update[] = {
    {}, {.shard = Shard::optimizer}, {.shard = Shard::gradients}, {.share_memory = true}};

/// Whether the options need a DistributedOptimizer.
inline bool divides_update(const DataParallelOptions& options) {
  return options.shard != Shard::none || options.share_memory == true;
}

inline const std::vector<std::vector<std::int64_t>> some_shapes{{3}, {2, 5}, {17}, {1}};
inline const std::vector<std::vector<std::int64_t>> two_shapes{{3}, {2, 5}};

/// The number of processes of which `lockstep run` or mpirun has started this one, if it has.
inline std::optional<int> started_processes() {
  if (const auto size = Environment::get().world_size) return size;
  const auto launcher = Launcher::read();
  return launcher ? std::optional(launcher->size) : std::nullopt;
}

/// The world of these processes.
inline const Group& world_of_processes() {
  static const Group world = init({.timeout = std::chrono::seconds(20)});
  const bool has_hosts = !Environment::get().host.empty();
  EXPECT_TRUE(!has_hosts || world.nodes() == 2);
  return world;
}

/// Where the models and tensors below are made on this thread: on the CPU, or, in ranks of a world
/// on devices (LOCKSTEP_DEVICE), on the device of the rank.
inline at::Device& own_device() {
  thread_local at::Device device = at::kCPU;
  return device;
}

/// Runs fn on n ranks with one compute thread each, as the reference has. The ranks are threads, or
/// the processes that a launcher has started. Skips the test if these are another number.
inline void on_ranks(int n, const std::function<void(Group)>& fn) {
  if (const auto processes = started_processes()) {
    at::set_num_threads(1);
    if (*processes != n) GTEST_SKIP() << n << " ranks, of " << *processes << " processes";
    own_device() = world_of_processes().device();
    return fn(world_of_processes());
  }
  spawn(n,
        [&](const Group& world) {
          at::set_num_threads(1);
          own_device() = world.device();
          fn(world);
          own_device() = at::kCPU;  // of the thread's next world
        },
        {.timeout = std::chrono::seconds(20)});
}

/// The error that fn raises on each rank.
inline std::vector<std::string> errors_of(int ranks, const std::function<void(const Group&)>& fn) {
  return errors_in(
      ranks, [ranks](const auto& each) { on_ranks(ranks, each); }, fn);
}

/// Runs fn, whose backwards add to gradients that stay this rank's own.
template <class Wrapper, class Fn>
void without_sync(Wrapper& wrapper, const Fn& fn) {
  const auto local = wrapper.no_sync();
  fn();
}

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed,
                         at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, dtype)
      .normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(seed))
      .to(own_device());
}

/// Values that depend on the seed only: LibTorch's own generator is shared by threads.
inline void set_values(torch::nn::Module& model, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) {
    const auto fan = parameter.dim() > 1 ? parameter.numel() / parameter.size(0) : 4;
    parameter.copy_(random(parameter.sizes(), seed++, parameter.scalar_type()) /
                    std::sqrt(static_cast<double>(fan)));
  }
}

/// The norm-wise distance of two tensors.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const double norm = b.norm().item<double>();
  return (a - b).norm().item<double>() / (norm > 0 ? norm : 1);
}

struct Mlp : torch::nn::Module {
  explicit Mlp(std::vector<std::int64_t> widths = {7, 11, 5, 3}) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(register_module(lockstep::detail::concat("layer", i),
                                       torch::nn::Linear(widths[i], widths[i + 1])));
    }
    to(own_device());
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x);
      if (i + 1 < layers.size()) x = x.tanh();
    }
    return x;
  }
  static at::Tensor batch(std::int64_t n, std::uint64_t seed) {
    return random({n, 7}, seed, at::kDouble);
  }
  std::vector<torch::nn::Linear> layers;
};

/// total = Σ (parameter · coefficient) over the coefficients that are defined, so that a
/// parameter's gradient is its coefficient.
struct Terms : torch::nn::Module {
  explicit Terms(const std::vector<std::vector<std::int64_t>>& shapes,
                 at::ScalarType dtype = at::kFloat) {
    for (const auto& shape : shapes) add(at::ones(shape, dtype));
  }
  at::Tensor& add(const at::Tensor& value) {
    p.push_back(
        register_parameter(lockstep::detail::concat("p", p.size()), value.to(own_device())));
    return p.back();
  }
  at::Tensor forward(const std::vector<at::Tensor>& coefficients, const at::Tensor& input = {}) {
    auto total = input.defined() ? input.sum() : at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i < p.size(); ++i)
      if (coefficients[i].defined()) total = total + (p[i] * coefficients[i]).sum();
    return total;
  }
  std::vector<at::Tensor> p;
};

inline std::shared_ptr<Terms> make_terms(const std::vector<std::vector<std::int64_t>>& shapes,
                                         at::ScalarType dtype = at::kFloat) {
  return std::make_shared<Terms>(shapes, dtype);
}

/// The gradient of a parameter on a rank.
inline at::Tensor coefficient(int rank, std::size_t index, const at::Tensor& parameter) {
  return at::arange(parameter.numel(), at::kDouble)
      .add(1 + 10 * rank + static_cast<int>(index))
      .view(parameter.sizes())
      .to(parameter.options());
}

inline std::vector<at::Tensor> coefficients(int rank, const Terms& model) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < model.p.size(); ++i) all.push_back(coefficient(rank, i, model.p[i]));
  return all;
}

/// Whether a rank has gradients.
using TookPart = std::function<bool(int)>;
inline bool all_took_part(int /*rank*/) { return true; }

/// The mean over the ranks of their coefficients; zero for a rank that has none.
inline at::Tensor mean_coefficient(int ranks, std::size_t index, const at::Tensor& parameter,
                                   const TookPart& took_part = all_took_part) {
  auto sum = at::zeros(parameter.sizes(), at::kDouble);
  for (int rank = 0; rank < ranks; ++rank)
    if (took_part(rank)) sum += coefficient(rank, index, parameter).cpu();
  return (sum / ranks).to(parameter.scalar_type()).to(own_device());
}

inline bool near(const at::Tensor& got, const at::Tensor& expected) {
  return got.defined() && got.sizes() == expected.sizes() &&
         at::allclose(got, expected, 1e-6, 1e-6);
}

/// Gradients are so many times the means of the ranks' coefficients.
inline void expect_means(const Terms& model, const Group& world, double times = 1,
                         const TookPart& took_part = all_took_part) {
  for (std::size_t i = 0; i < model.p.size(); ++i) {
    const auto mean = mean_coefficient(world.size(), i, model.p[i], took_part);
    EXPECT_TRUE(near(model.p[i].grad(), times * mean)) << i;
  }
}

/// Copies of the values.
inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

/// Terms of which a DistributedOptimizer subtracts the gradients, times its learning rate.
struct OptimizedTerms {
  explicit OptimizedTerms(const Group& world, const DataParallelOptions& options = {},
                          const std::vector<std::vector<std::int64_t>>& shapes = two_shapes,
                          const torch::optim::SGDOptions& of_sgd = 1)
      : group(world),
        model(shapes),
        sgd(model.parameters(), of_sgd),
        optimizer(sgd, model, world, options) {}

  /// Its gradients are so many times this rank's coefficients.
  at::Tensor loss(double times = 1) {
    return times * model.forward(coefficients(group.rank(), model));
  }

  /// Adds gradients that stay this rank's own.
  void accumulate(double times = 1) {
    without_sync(optimizer, [&] { loss(times).backward(); });
  }
  /// Whether step() subtracts so many means of the coefficients from the values before it.
  void expect_step_of(double means, const TookPart& took_part = all_took_part) {
    const auto before = copies_of(model.p);
    optimizer.step();
    for (std::size_t i = 0; i < model.p.size(); ++i) {
      const auto mean = mean_coefficient(group.size(), i, model.p[i], took_part);
      EXPECT_TRUE(near(model.p[i].detach(), before[i] - means * mean)) << "p" << i;
    }
  }

  Group group;
  Terms model;
  torch::optim::SGD sgd;
  DistributedOptimizer optimizer;
};

/// The same bits and strides of all parameters.
inline void expect_equal_models(const torch::nn::Module& got, const torch::nn::Module& expected) {
  const auto ours = got.parameters();
  const auto theirs = expected.parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
    EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << i;
  }
}

/// expect_equal_models() of models that ranks may share: a rank that is ahead must not update
/// parameters that other ranks still compare. Ranks: all.
inline void expect_equal_replicas(const Group& world, const torch::nn::Module& got,
                                  const torch::nn::Module& expected) {
  world.barrier().wait();
  expect_equal_models(got, expected);
  world.barrier().wait();
}

/// The same parameters up to a distance.
inline void expect_near_models(const torch::nn::Module& got, const torch::nn::Module& expected,
                               double most) {
  const auto ours = got.parameters();
  const auto theirs = expected.parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_LE(distance(ours[i].detach(), theirs[i].detach()), most) << i;
}

}  // namespace lockstep::testing
