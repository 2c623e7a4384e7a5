// A custom strategy: the ranks vote on the sign of every gradient element, with one byte each.
//
//   lockstep run -n 3 custom_strategy
//
// Source: Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with Majority Vote", 2019.
#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <iostream>
#include <memory>
#include <string>

#include "program.h"

/// The state of the strategy for one bucket of gradients.
class Votes : public lockstep::Exchange {
 public:
  /// A coroutine: the backward continues while it awaits its collective.
  lockstep::ExchangeTask exchange(std::int64_t /*step*/, lockstep::Bucket& bucket,
                                  const lockstep::Group& group) override {
    const auto& gradient = bucket.values();
    // Allocated once, in group memory, which collectives do not copy.
    if (!votes_.defined()) votes_ = group.empty(gradient.sizes(), at::kChar);
    votes_.copy_(gradient.sign());
    co_await group.all_reduce(votes_);  // the sum of up to 127 votes fits into a byte
    gradient.copy_(votes_.sign());
  }

  /// On several hosts every rank votes, too: without this, each host would vote once, on its sum.
  bool is_all_reduce() const override { return true; }

 private:
  at::Tensor votes_;
};

/// The strategy is a value without a base class.
struct SignVote {
  std::string text() const { return "sign_vote"; }
  std::unique_ptr<lockstep::Exchange> exchange(const lockstep::Bucket&) const {
    return std::make_unique<Votes>();
  }
};

/// Learns y = x · (1, 2, …, 8) from noisy samples, which differ between ranks.
void train(const lockstep::Group& world, bool verbose) {
  torch::nn::Linear model(torch::nn::LinearOptions(8, 1).bias(false));
  model->to(world.device());
  lockstep::DistributedDataParallel ddp(model, world, {.strategy = SignVote{}});
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.02));
  const auto weights = at::arange(1, 9, at::kFloat).view({8, 1});
  torch::manual_seed(1 + world.rank());
  for (int step = 1; step <= 500; ++step) {
    const auto x = torch::randn({32, 8});
    const auto y = x.mm(weights) + 0.1 * torch::randn({32, 1});
    sgd.zero_grad();
    const auto loss = torch::mse_loss(ddp(x.to(world.device())), y.to(world.device()));
    loss.backward();
    sgd.step();
    if (world.rank() == 0 && step % 100 == 0) {
      std::cout << "step " << step << ": loss " << loss.item<float>() << std::endl;
    }
  }
  if (verbose) program::print_statistics(world);
}

int main(int argc, char** argv) {
  CLI::App app(
      "Trains with a strategy of its own. Start it with: lockstep run -n 3 custom_strategy",
      "custom_strategy");
  bool verbose = false;
  program::add_world(app);
  program::add_verbose(app, verbose);
  return program::run(app, argc, argv,
                      [&](const lockstep::Group& world) { train(world, verbose); });
}
