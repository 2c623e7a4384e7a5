// Times the training step of SINGA's MNIST CNN, or of another model on random data, in turns:
// - one rank alone while the others sleep;
// - all ranks at once without exchange;
// - the same with a barrier after each step ("paced");
// - all ranks with the exchange.
// This separates the costs of shared cores, of waiting for the slower rank, and of Lockstep. Also
// counts the page faults of a step and the part of it that loads data.
// With --device cuda, ranks use GPUs and NCCL. Then batches are random numbers in the memory of the
// GPU, and a step has no metrics, as with bench/peers/torch_step.py.
// Rank 0 prints one JSON object. bench/train/compare.py runs all configurations.

#include <lockstep/lockstep.h>
#include <sys/resource.h>
#include <torch/cuda.h>
#include <torch/data/dataloader.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "largest.h"
#include "models.h"

namespace {

using namespace lockstep::bench;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model = "cnn";
  std::int64_t batch_size = 0;  ///< 0 takes the model's
  std::int64_t verify_every = 1;
  std::string data = MNIST_SAMPLE;
  std::string strategy = "fp32";
  std::string optimizer = "sgd";
  bool fused = false;
  bool share_memory = false;
  std::string device = "cpu";
  int threads = 0;
  int rounds = 7;
  int steps = 20;
  bool alone = true;
  bool faults = true;
};

/// Batches without end: of MNIST for the CNN, else one of random numbers again and again.
class Batches {
 public:
  Batches(const Settings& settings, const lockstep::Group& world) {
    const auto& work = works().at(settings.model);
    const auto size = settings.batch_size > 0 ? settings.batch_size : work.batch_size;
    if (settings.model != "cnn" || !world.device().is_cpu()) {
      auto sizes = work.sample;
      sizes.insert(sizes.begin(), size);
      batch_ = {torch::rand(sizes).to(world.device()),
                torch::randint(10, {size}, torch::kLong).to(world.device())};
      return;
    }
    const lockstep::Mnist data(settings.data);
    loader_ = torch::data::make_data_loader(
        data,
        lockstep::DistributedSampler(data.size().value(), world, {.tail = lockstep::Tail::drop}),
        // A last batch of another size would be another step.
        torch::data::DataLoaderOptions(static_cast<std::size_t>(size)).drop_last(true));
    next_ = loader_->begin();
  }

  torch::data::Example<> next() {
    if (loader_ == nullptr) return batch_;
    if (*next_ == loader_->end()) next_ = loader_->begin();
    auto batch = **next_;
    ++*next_;
    return batch;
  }

 private:
  torch::data::Example<> batch_;
  std::unique_ptr<torch::data::StatelessDataLoader<lockstep::Mnist, lockstep::DistributedSampler>>
      loader_;
  std::optional<torch::data::Iterator<torch::data::Example<>>> next_;
};

/// One training run, of which any number of steps may be taken.
class Training {
 public:
  Training(const Settings& settings, const lockstep::Group& world, bool alone)
      : model_(make_model(settings, world)),
        base_(make_base(settings, model_->parameters())),
        batches_(settings, world),
        device_(world.device()) {
    if (alone) return;
    if (settings.share_memory) {
      optimizer_ = std::make_unique<lockstep::DistributedOptimizer>(
          *base_, *model_, world, lockstep::DataParallelOptions{.share_memory = true});
      return;
    }
    ddp_ = std::make_unique<lockstep::DistributedDataParallel<Layers>>(
        model_, world,
        lockstep::DataParallelOptions{.strategy = lockstep::parse_strategy(settings.strategy),
                                      .verify_every = settings.verify_every});
  }

  /// Seconds a step.
  template <class After = void (*)()>
  double time(
      int steps, After after = [] {}) {
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) {
      step();
      after();
    }
    if (device_.is_cuda()) torch::cuda::synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    all_seconds_ += seconds;
    return seconds / steps;
  }

  /// The share of all calls of time() that went into getting batches. Units: percent.
  double loader_percent() const { return 100 * loader_seconds_ / all_seconds_; }

 private:
  static std::shared_ptr<Layers> make_model(const Settings& settings,
                                            const lockstep::Group& world) {
    std::shared_ptr<Layers> model;
    world.in_turn([&] { model = std::make_shared<Layers>(works().at(settings.model).model()); });
    model->to(world.device());
    return model;
  }

  static std::unique_ptr<torch::optim::Optimizer> make_base(
      const Settings& settings, const std::vector<at::Tensor>& parameters) {
    const bool fused = settings.fused || settings.share_memory;
    if (settings.optimizer == "adamw") {
      const auto options = torch::optim::AdamWOptions(1e-4);
      if (fused) return std::make_unique<lockstep::FusedAdamW>(parameters, options);
      return std::make_unique<torch::optim::AdamW>(parameters, options);
    }
    const auto options = torch::optim::SGDOptions(0.005).momentum(0.9).weight_decay(1e-5);
    if (fused) return std::make_unique<lockstep::FusedSgd>(parameters, options);
    return std::make_unique<torch::optim::SGD>(parameters, options);
  }

  void step() {
    const auto begin = Clock::now();
    const auto batch = batches_.next();
    loader_seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
    base_->zero_grad();
    const at::Tensor outputs = ddp_ ? (*ddp_)(batch.data) : model_->forward(batch.data);
    const at::Tensor loss = torch::nn::functional::cross_entropy(outputs, batch.target);
    if (optimizer_) {
      optimizer_->backward_and_update(loss);
    } else {
      loss.backward();
      base_->step();
    }
    if (device_.is_cpu()) tally_.add(loss, outputs, batch.target);
  }

  std::shared_ptr<Layers> model_;
  std::unique_ptr<torch::optim::Optimizer> base_;
  Batches batches_;
  at::Device device_;
  std::unique_ptr<lockstep::DistributedDataParallel<Layers>> ddp_;
  std::unique_ptr<lockstep::DistributedOptimizer> optimizer_;
  lockstep::Tally tally_;
  double all_seconds_ = 0;
  double loader_seconds_ = 0;
};

std::int64_t page_faults(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

void measure(const Settings& settings, const lockstep::Group& world) {
  Training together(settings, world, false);
  nlohmann::ordered_json result = {{"model", settings.model},
                                   {"ranks", world.size()},
                                   {"device", world.device().str()},
                                   {"as", settings.threads > 0 ? "threads" : "processes"}};

  const int first_steps = settings.model == "cnn" ? 50 : 3;
  together.time(first_steps);
  if (settings.faults) {
    constexpr int steps = 200;
    const int who = settings.threads > 0 ? RUSAGE_THREAD : RUSAGE_SELF;
    const std::int64_t before = page_faults(who);
    together.time(steps);
    const auto faults = static_cast<double>(page_faults(who) - before);
    result["faults_per_step"] = largest(faults / steps, world);
  }

  // Milliseconds a step, by the name of the figure.
  std::map<std::string, std::vector<double>> rounds;
  std::unique_ptr<Training> alone;
  if (settings.alone) {
    alone = std::make_unique<Training>(settings, world, true);
    alone->time(first_steps);
  }
  for (int round = 0; round < settings.rounds; ++round) {
    world.host().barrier().wait();
    if (alone && world.rank() == 0) {
      rounds["alone_ms"].push_back(1000 * alone->time(settings.steps));
    }
    world.host().barrier().wait();
    if (alone) {
      rounds["at_once_ms"].push_back(1000 * largest(alone->time(settings.steps), world));
      world.host().barrier().wait();
      const auto pace = [&] { world.host().barrier().wait(); };
      rounds["paced_ms"].push_back(1000 * largest(alone->time(settings.steps, pace), world));
      world.host().barrier().wait();
    }
    rounds["together_ms"].push_back(1000 * largest(together.time(settings.steps), world));
  }
  const double loader_percent = largest(together.loader_percent(), world);
  if (world.rank() != 0) return;
  result["loader_percent"] = loader_percent;
  for (const auto& [name, times] : rounds) result[name] = median(times);
  if (alone) result["ratio"] = median(rounds["together_ms"]) / median(rounds["alone_ms"]);
  std::cout << result.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times the training step of SINGA's MNIST CNN, or of another model");
  app.add_option("--model", settings.model, "cnn, mlp, resnet9, resnet50 or transformer")
      ->check(CLI::IsMember({"cnn", "mlp", "resnet9", "resnet50", "transformer"}))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size,
                 "A rank's [cnn 64, transformer 32, resnet50 8, others 16]")
      ->check(CLI::Range(1, 100000));
  app.add_option("--verify-every", settings.verify_every, "Exchanges between proofs; 0 for none")
      ->check(CLI::Range(0, 100000));
  app.add_option("--strategy", settings.strategy, "How gradients are exchanged")
      ->capture_default_str();
  auto* const device =
      app.add_option("--device", settings.device, "cpu, or cuda: rank r uses the GPU r")
          ->check(CLI::IsMember({"cpu", "cuda"}))
          ->capture_default_str();
  app.add_option("--optimizer", settings.optimizer, "Optimizer")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_flag("--fused", settings.fused,
               "FusedSgd or FusedAdamW instead of the optimizer of torch::optim");
  app.add_flag("--share-memory", settings.share_memory,
               "As --fused, and one copy of the parameters for all ranks")
      ->excludes(device);
  app.add_option("--data", settings.data, "Folder of MNIST")->capture_default_str();
  app.add_option("--threads", settings.threads, "So many thread ranks")->check(CLI::Range(1, 512));
  app.add_option("--rounds", settings.rounds, "Rounds of alone and together")
      ->check(CLI::Range(1, 1000));
  app.add_option("--steps", settings.steps, "Steps a round")->check(CLI::Range(1, 100000));
  app.add_flag("!--no-alone", settings.alone, "Only all ranks together");
  app.add_flag("!--no-faults", settings.faults, "Do not count page faults");
  CLI11_PARSE(app, argc, argv);
  try {
    torch::manual_seed(0);
    const lockstep::InitOptions options{.device = settings.device == "cuda" ? at::kCUDA : at::kCPU,
                                        .keep_freed_memory = true};
    if (settings.threads > 0) {
      lockstep::spawn(
          settings.threads, [&](const lockstep::Group& world) { measure(settings, world); },
          options);
    } else {
      measure(settings, lockstep::init(options));
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench_train_step: " << error.what() << std::endl;
    return 1;
  }
}
