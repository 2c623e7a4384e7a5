// Measures the part of a training step's communication that is hidden behind its backward, for the
// MLP of 24.2 million parameters with batches of 64. Times, in turns: backward alone, the exchange
// of as many bytes alone, and both by DistributedDataParallel. Prints one JSON object. Meant for
// two hosts and a limited link: tools/two-hosts --per-host 1.

#include <lockstep/lockstep.h>
#include <torch/nn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/clock.h"
#include "comm/communicator.h"
#include "core/environment.h"
#include "largest.h"
#include "models.h"

namespace lockstep::bench::overlap {
namespace {

constexpr std::int64_t batch_size = 64;

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

class Overlap {
 public:
  explicit Overlap(const lockstep::Group& world)
      : world_(world),
        inputs_(torch::rand({batch_size, 784})),
        targets_(torch::randint(10, {batch_size}, torch::kLong)),
        alone_(std::make_shared<Layers>(mlp())),
        exchanged_(std::make_shared<Layers>(mlp())),
        ddp_(exchanged_, world_) {
    constexpr int first_steps = 3;  // buckets learn their order
    for (int i = 0; i < first_steps; ++i) {
      backward();
      both();
    }
    for (const auto& row : world_.statistics()) {
      if (row.bucket < 0) continue;
      const auto elements = row.bytes / row.count / sizeof(float);
      buckets_.push_back(world_.empty({static_cast<std::int64_t>(elements)}));
    }
    exchange();
  }

  double backward() {
    alone_->zero_grad();
    const auto of_alone = loss(alone_->forward(inputs_));
    return 1000 * slowest_seconds(world_, [&] { of_alone.backward(); });
  }

  double exchange() {
    for (auto& bucket : buckets_) bucket.fill_(1);
    return 1000 * slowest_seconds(world_, [&] {
             std::vector<lockstep::Work> works;
             for (auto& bucket : buckets_) {
               works.push_back(world_.all_reduce(bucket, lockstep::ReduceOp::avg));
             }
             for (auto& work : works) work.wait();
           });
  }

  /// Milliseconds of both, and of this rank's buckets meanwhile by world.statistics(): those of
  /// communication, and those of it that were hidden.
  std::array<double, 3> both() {
    exchanged_->zero_grad();
    const auto of_both = loss(ddp_(inputs_));
    const auto before = overlap();
    const double took = 1000 * slowest_seconds(world_, [&] { of_both.backward(); });
    const auto after = overlap();
    return {took, milliseconds(after.first - before.first),
            milliseconds(after.second - before.second)};
  }

 private:
  at::Tensor loss(const at::Tensor& outputs) const {
    return torch::nn::functional::cross_entropy(outputs, targets_);
  }

  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> overlap() const {
    std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> sums{};
    for (const auto& row : world_.statistics()) {
      if (row.bucket < 0) continue;
      sums.first += row.communicating;
      sums.second += row.hidden;
    }
    return sums;
  }

  lockstep::Group world_;
  at::Tensor inputs_;
  at::Tensor targets_;
  std::shared_ptr<Layers> alone_;
  std::shared_ptr<Layers> exchanged_;
  lockstep::DistributedDataParallel<Layers> ddp_;
  std::vector<at::Tensor> buckets_;
};

void measure(int turns, const lockstep::Group& world) {
  Overlap overlap(world);
  std::map<std::string, std::vector<double>> rounds;
  for (int turn = 0; turn < turns; ++turn) {
    const double backward = overlap.backward();
    const double exchange = overlap.exchange();
    const auto [both, communicating, hidden] = overlap.both();
    rounds["backward_ms"].push_back(backward);
    rounds["exchange_ms"].push_back(exchange);
    rounds["both_ms"].push_back(both);
    rounds["hidden_percent"].push_back(100 * (backward + exchange - both) /
                                       std::min(backward, exchange));
    rounds["statistics_communicating_ms"].push_back(communicating);
    rounds["statistics_hidden_ms"].push_back(hidden);
  }
  if (world.rank() != 0) return;
  nlohmann::ordered_json result = {
      {"ranks", world.size()},
      {"backend", world.communicator().backend()},
      {"progress", name(lockstep::Environment::get().progress)},
  };
  for (const auto& [what, of_rounds] : rounds) result[what] = median(of_rounds);
  std::cout << result.dump() << std::endl;
}

}  // namespace

std::function<void()> program(CLI::App& command) {
  const auto rounds = std::make_shared<int>(9);
  command.add_option("--rounds", *rounds, "Turns of the three")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return [=] {
    torch::manual_seed(0);
    measure(*rounds, lockstep::init({.timeout = {}, .keep_freed_memory = true}));
  };
}

}  // namespace lockstep::bench::overlap
