#include <ATen/ops/full.h>
#include <signal.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/error_file.h"
#include "lockstep/init.h"
#include "lockstep/parallel/distributed_optimizer.h"

/// Fifty steps from the same start, each rank with data of its own. Returns all parameters.
at::Tensor train(const lockstep::Group& world) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(20, 3000), torch::nn::ReLU(),
                              torch::nn::Linear(3000, 10));
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  lockstep::DistributedOptimizer optimizer(sgd, *model, world);
  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  for (int step = 0; step < 50; ++step) {
    const at::Tensor outputs = model->forward(torch::rand({8, 20}));
    optimizer.backward_and_update(torch::nn::functional::mse_loss(outputs, torch::rand({8, 10})));
  }
  std::vector<at::Tensor> flat;
  for (const auto& parameter : model->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

bool same_on_all(const at::Tensor& values, const lockstep::Group& world) {
  const auto least = values.clone();
  const auto most = values.clone();
  world.all_reduce(least, lockstep::ReduceOp::min).wait();
  world.all_reduce(most, lockstep::ReduceOp::max).wait();
  return least.equal(values) && most.equal(values);
}

/// A rank of whatever world its environment tells of: says where it is and what all have in sum.
/// With "where" it says, too, where it is among hosts, and what those of its host have in sum, and
/// those of its place on every host. With "kill" rank 1 ends by a signal, and the others say what
/// they hear of it. With "throw" rank 1 throws what nobody catches, and with "throw-once" does so
/// until the launcher has started it again. With "train" and a file ranks train instead, see to it
/// that all have the same bits in the end, and rank 0 saves them. Errors are left where the
/// launcher looks for them.
int main(int argc, char** argv) {
  const std::string_view behaviour = argc > 1 ? argv[1] : "";
  try {
    const auto world = lockstep::init();
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const bool again = restarts != nullptr && restarts != std::string_view("0");
    const bool throws = behaviour == "throw" || (behaviour == "throw-once" && !again);
    if (throws && world.rank() == 1) throw std::runtime_error("no such data");
    if (behaviour == "kill" && world.rank() == 1) ::raise(SIGKILL);
    if (behaviour == "train") {
      const auto parameters = train(world);
      if (!same_on_all(parameters, world)) throw std::runtime_error("replicas differ");
      if (world.rank() == 0) torch::save(parameters, argv[2]);
      return 0;
    }
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
