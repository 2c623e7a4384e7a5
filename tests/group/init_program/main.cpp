#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string_view>

#include "comm/communicator.h"
#include "core/failure.h"
#include "core/system/process.h"
#include "join/join_world.h"
#include "lockstep/distributed_data_parallel.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/error.h"
#include "lockstep/group.h"
#include "lockstep/init.h"
#include "tests/group/denormal_threads.h"

/// Fifty steps, each rank with data of its own.
void train(const lockstep::Group& world) {
  torch::nn::Sequential model(torch::nn::Linear(20, 3000), torch::nn::ReLU(),
                              torch::nn::Linear(3000, 10));
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  lockstep::DistributedOptimizer optimizer(sgd, *model, world);
  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  for (int step = 0; step < 50; ++step) {
    const at::Tensor outputs = model->forward(torch::rand({8, 20}));
    optimizer.backward_and_update(torch::nn::functional::mse_loss(outputs, torch::rand({8, 10})));
  }
}

/// Returns once the process has ended; it need not have been reaped.
void await_end(std::int64_t pid) {
  for (;;) {
    const char state = lockstep::detail::read_process(pid).state;
    if (state == 0 || state == 'Z') return;
    ::usleep(1000);
  }
}

/// Every rank's process.
at::Tensor pids_of(const lockstep::Group& world) {
  const auto all = at::zeros({world.size()}, at::kLong);
  world.all_gather(all, at::full({1}, static_cast<std::int64_t>(::getpid()), at::kLong)).wait();
  return all;
}

/// Rank 1 alone meets an error of LibTorch, which has a backtrace.
void meet_error_of_libtorch(const lockstep::Group& world) {
  if (world.rank() == 1) at::ones({2}).view({3});
  world.all_reduce(at::ones({2})).wait();
}

/// The gradient of rank 1 is not finite, which both ranks raise. Rank 0 ends first. They record the
/// error, or only print it.
int train_with_nan(const lockstep::Group& world, const std::string& strategy, bool records) {
  const auto pids = pids_of(world);
  const torch::nn::Linear model(4, 2);
  lockstep::DistributedDataParallel ddp(
      model, world,
      {.strategy = lockstep::parse_strategy(strategy), .check_finite = strategy == "fp32"});
  try {
    const double factor = world.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
    (ddp(at::ones({1, 4})).sum() * factor).backward();
  } catch (const lockstep::Error& error) {
    if (records) {
      lockstep::record_error(error);
    } else {
      std::cerr << error.what() << std::endl;
    }
    if (world.rank() == 1) await_end(pids[0].item<std::int64_t>());
  }
  return 1;
}

/// Ends as a rank whose program throws while the other ranks are still in init(). Their exchange of
/// devices waits for this rank.
int throw_early() {
  const auto world = lockstep::detail::join_world({});
  world->fail_with({.kind = lockstep::detail::Failure::Kind::error,
                    .rank = world->rank(),
                    .text = "no such file"});
  return 1;
}

[[noreturn]] void train_for_ever(const lockstep::Group& world) {
  std::cout << "pid " + std::to_string(::getpid()) + '\n' << std::flush;
  const auto tensor = at::full({5000}, 1.0);
  for (;;) world.all_reduce(tensor).wait();
}

/// Runs as a rank of the world that the environment describes. Prints its rank and a sum over all
/// ranks. The argument selects a behaviour:
/// - where: also prints its host, the sum over the ranks of its host, and the sum over ranks with
/// the same local rank.
/// - throw: rank 1 throws an error that the program does not catch; throw-once: only until a
/// restart.
/// - libtorch: rank 1 meets an error of LibTorch that the program does not catch; libtorch-main:
/// that run_main() catches.
/// - leave-main: all ranks but the last return to run_main() before its operation.
/// - late-main: the last rank throws after the others have returned to run_main().
/// - throw-early: ends the world by an error, which init() raises on other ranks; sum-main: such a
/// rank.
/// - raise: rank 1 throws an error that the program catches after the group's destruction.
/// - nan STRATEGY: rank 1 has a gradient that is not finite, which both ranks raise; nan-printed
/// STRATEGY: they do not record it.
/// - for-ever: ranks print their pids and run until a signal ends them.
/// - train: ranks train.
/// - denormals: prints which of its threads flush denormals. denormals-late computes before init().
/// denormals-kept asks init() to keep denormals.
/// The program stores errors in the files that the launcher reads.
int main(int argc, char** argv) {
  const std::string_view behaviour = argc > 1 ? argv[1] : "";
  if (behaviour == "libtorch-main") return lockstep::run_main(argc, argv, meet_error_of_libtorch);
  if (behaviour == "throw-early") return throw_early();
  if (behaviour == "sum-main") {
    return lockstep::run_main(
        argc, argv, [](const lockstep::Group& world) { world.all_reduce(at::ones({2})).wait(); });
  }
  if (behaviour == "leave-main" || behaviour == "late-main") {
    return lockstep::run_main(argc, argv, [&](const lockstep::Group& world) {
      if (world.rank() + 1 < world.size()) return;
      if (behaviour == "leave-main") return world.barrier().wait();
      ::usleep(500'000);
      throw lockstep::DataError("no such file");
    });
  }
  try {
    if (behaviour == "denormals-late") at::sum(at::ones({1 << 20}));  // starts OpenMP's threads
    lockstep::InitOptions options;
    if (behaviour == "denormals-kept") options.flush_denormals = false;
    if (behaviour == "twice") {
      try {
        lockstep::init(options);
      } catch (const lockstep::InvalidArgument&) {
      }
    }
    const auto world = lockstep::init(options);
    if (behaviour.starts_with("denormals")) {
      std::cout << "rank " + std::to_string(world.rank()) + ": " +
                       lockstep::testing::what_is_flushed() + ", " +
                       lockstep::testing::what_the_process_flushes() + '\n'
                << std::flush;
      return 0;
    }
    if (behaviour.empty()) {
      std::cout << "threads: " + std::to_string(at::get_num_threads()) + '\n' << std::flush;
    }
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const bool again = restarts != nullptr && restarts != std::string_view("0");
    const bool throws = behaviour == "throw" || (behaviour == "throw-once" && !again);
    if (throws && world.rank() == 1) throw std::runtime_error("no such data");
    if (behaviour == "libtorch") meet_error_of_libtorch(world);
    if (behaviour == "raise" && world.rank() == 1) throw lockstep::DataError("no such file");
    if (behaviour.starts_with("nan")) return train_with_nan(world, argv[2], behaviour == "nan");
    if (behaviour == "for-ever") train_for_ever(world);
    if (behaviour == "train") return train(world), 0;
    const auto tensor = at::full({5000}, world.rank() + 1.0);
    world.all_reduce(tensor).wait();
    std::cout << "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) +
                     " over " + std::string(world.communicator().backend()) + ": " +
                     std::to_string(static_cast<int>(tensor[4999].item<float>())) + '\n'
              << std::flush;
    if (behaviour != "where") return 0;
    const auto sum_of = [&](const lockstep::Group& group) {
      const auto own = at::full({1}, world.rank() + 1.0);
      group.all_reduce(own).wait();
      return std::to_string(static_cast<int>(own.item<float>()));
    };
    const auto locally = sum_of(world.local());
    const auto across = sum_of(world.across_nodes());
    std::cout << "rank " + std::to_string(world.rank()) + " is " +
                     std::to_string(world.local_rank()) + " of " +
                     std::to_string(world.local_size()) + " on host " +
                     std::to_string(world.node()) + " of " + std::to_string(world.nodes()) +
                     ", locally " + locally + ", across " + across + '\n'
              << std::flush;
    return 0;
  } catch (const lockstep::Error& error) {
    lockstep::record_error(error);
    std::cout << std::string(error.what()) + '\n' << std::flush;
    return 1;
  }
}
