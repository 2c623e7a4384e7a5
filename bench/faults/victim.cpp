// A rank for bench/faults/random_kills and bench/faults/fault_matrix: collectives, or a small
// training, of known length. It prints when it joins and when it is done, so that a kill can be
// aimed, and ends with the digest of its result. One rank can misbehave at a step of the
// collectives, or before init().
//
//   bench_victim [--train] [--steps N] [--pause MS] [--child none|worker|stays] [--checkpoints DIR]
//   bench_victim --train --shard none|optimizer|gradients|share_memory
//                [--kill-call N --kill-rank R --kill-once FILE]
//   bench_victim --fault NAME --fault-rank R [--before-init]

#include <ATen/ops/empty.h>
#include <lockstep/lockstep.h>
#include <sys/wait.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/train/models.h"
#include "core/numeric/digest.h"
#include "core/text.h"
#include "misbehaviour.h"

namespace lockstep::bench::victim {
namespace {

struct Settings {
  bool train = false;
  int steps = 100;
  double pause = 2;
  std::string child = "none";
  std::string checkpoints;
  std::string shard;  ///< empty: the training of other faults
  int kill_call = -1;
  int kill_rank = 0;
  std::string kill_once;
  std::string fault;
  int fault_rank = -1;
  bool before_init = false;
};

/// One write() a line: lines of several ranks may share a pipe.
void say(const lockstep::Group& world, const std::string& text) {
  std::cout << "rank " + std::to_string(world.rank()) + ' ' + text + '\n' << std::flush;
}

/// A child process as a data loader forks it. A worker ends when this process does; one that stays
/// is left to the launcher.
class Child {
 public:
  Child(const std::string& kind, const lockstep::Group& world) {
    if (kind == "none") return;
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("cannot make a pipe");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("cannot fork");
    if (pid == 0) {
      ::close(ends[1]);
      char byte = 0;
      while (kind == "stays" || ::read(ends[0], &byte, 1) != 0) {
        if (kind == "stays") ::pause();
      }
      ::_exit(0);
    }
    ::close(ends[0]);
    end_ = ends[1];
    if (kind == "worker") worker_ = pid;
    say(world, "child " + std::to_string(pid));
  }
  ~Child() {
    if (end_ >= 0) ::close(end_);
    while (worker_ > 0 && ::waitpid(worker_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  int end_ = -1;
  pid_t worker_ = 0;
};

void pause(const Settings& settings) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(settings.pause));
}

/// Sizes that are sent with the announcement, copied through a buffer, and cut into pieces.
std::uint64_t run_collectives(const Settings& settings, const lockstep::Group& world) {
  constexpr std::array<std::int64_t, 3> sizes{10, 5'000, 200'000};
  constexpr int fault_step = 5;
  std::vector<std::uint64_t> digests;
  for (int step = 0; step < settings.steps; ++step) {
    const bool faulty = world.rank() == settings.fault_rank && step == fault_step;
    if (faulty && !settings.before_init) {
      say(world, "fault " + std::to_string(::getpid()));
      misbehave(settings.fault, &world);
    }
    const auto size = sizes[static_cast<std::size_t>(step) % sizes.size()];
    const auto tensor = random_numbers({size}, 1'000 * step + world.rank());
    auto sum = world.all_reduce(tensor);
    const auto all = at::empty({8L * world.size()});
    world.all_gather(all, random_numbers({8}, step)).wait();
    sum.wait();
    world.broadcast(all, step % world.size()).wait();
    if (step % 10 == 0) world.barrier().wait();
    digests.push_back(digest(tensor));
    pause(settings);
  }
  return lockstep::detail::digest(std::as_bytes(std::span(digests)));
}

/// An AdamW whose process is killed when it has begun so many updates of a parameter. Every rank
/// begins the update of every parameter, so that other parameters are updated then, or not yet.
class KilledAdamW final : public lockstep::FusedAdamW {
 public:
  KilledAdamW(const std::vector<at::Tensor>& parameters, const Settings& settings,
              const lockstep::Group& world)
      : lockstep::FusedAdamW(parameters, torch::optim::AdamWOptions(0.01)),
        calls_(world.rank() == settings.kill_rank ? settings.kill_call : -1),
        once_(settings.kill_once) {}

  void begin_update(const at::Tensor& parameter) override {
    lockstep::FusedAdamW::begin_update(parameter);
    if (calls_-- == 0 && !std::filesystem::exists(once_)) {
      std::ofstream(once_).put('\n');
      std::raise(SIGKILL);
    }
  }

 private:
  int calls_;
  std::filesystem::path once_;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        const Settings& settings,
                                                        const lockstep::Group& world) {
  if (!settings.shard.empty()) return std::make_unique<KilledAdamW>(parameters, settings, world);
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

lockstep::DataParallelOptions options_of(const Settings& settings) {
  lockstep::DataParallelOptions options{.buckets = {.first = 1'000, .rest = 8'000}};
  if (settings.shard.empty()) options.strategy = lockstep::parse_strategy("topk:0.1");
  if (settings.shard == "optimizer") options.shard = lockstep::Shard::optimizer;
  if (settings.shard == "gradients") options.shard = lockstep::Shard::gradients;
  options.share_memory = settings.shard == "share_memory";
  return options;
}

std::uint64_t train(const Settings& settings, const lockstep::Group& world) {
  constexpr int between_checkpoints = 5;
  torch::nn::Sequential model(torch::nn::Linear(40, 200), torch::nn::Tanh(),
                              torch::nn::Linear(200, 10));
  set_parameters(*model);
  const auto base = make_optimizer(model->parameters(), settings, world);
  lockstep::DistributedOptimizer optimizer(*base, *model, world, options_of(settings));
  const lockstep::Checkpoint checkpoint{.model = *model, .optimizer = *base, .strategy = optimizer};
  lockstep::CheckpointFolder folder(settings.checkpoints);
  int step = 0;
  if (!settings.checkpoints.empty()) {
    folder.lock(world);
    if (const auto resumed = folder.load_newest(checkpoint, world)) {
      step = static_cast<int>(resumed->meta.epoch);
    }
    say(world, "starts at step " + std::to_string(step));
  }
  for (; step < settings.steps; ++step) {
    if (!settings.checkpoints.empty() && step % between_checkpoints == 0) {
      folder.save(checkpoint, {.epoch = step}, world);
    }
    optimizer.zero_grad();
    const auto outputs = model->forward(random_numbers({8, 40}, 1'000 * step + world.rank()));
    optimizer.backward_and_update(outputs.square().mean());
    pause(settings);
  }
  std::vector<std::uint64_t> digests;
  for (const auto& parameter : model->parameters()) {
    digests.push_back(digest(parameter.detach().contiguous()));
  }
  return lockstep::detail::digest(std::as_bytes(std::span(digests)));
}

void run(const Settings& settings) {
  at::set_num_threads(1);
  if (settings.before_init && lockstep::bench::rank_before_init() == settings.fault_rank)
    misbehave(settings.fault, nullptr);
  const auto world = lockstep::init();
  say(world, "pid " + std::to_string(::getpid()));
  const Child child(settings.child, world);
  const auto result = settings.train ? train(settings, world) : run_collectives(settings, world);
  say(world, "done " + lockstep::detail::hex(result));
}

}  // namespace

std::function<void()> program(CLI::App& command) {
  const auto settings = std::make_shared<Settings>();
  command.add_flag("--train", settings->train, "Train instead of plain collectives");
  command.add_option("--steps", settings->steps, "Number of steps")->capture_default_str();
  command.add_option("--pause", settings->pause, "Pause after each step, in ms")
      ->capture_default_str();
  command.add_option("--child", settings->child, "Forked child of each rank")
      ->check(CLI::IsMember({"none", "worker", "stays"}));
  command.add_option("--checkpoints", settings->checkpoints,
                     "Folder to save to and to resume from");
  command.add_option("--shard", settings->shard, "Train with AdamW, whose state is divided so")
      ->check(CLI::IsMember({"none", "optimizer", "gradients", "share_memory"}));
  command.add_option("--kill-call", settings->kill_call,
                     "Number of the update of a parameter in which to kill");
  command.add_option("--kill-rank", settings->kill_rank, "The rank to kill");
  command.add_option("--kill-once", settings->kill_once,
                     "File that a kill creates and that prevents one");
  auto* const fault = command.add_option("--fault", settings->fault, "What one rank does wrong")
                          ->check(CLI::IsMember(lockstep::bench::misbehaviours()));
  command.add_option("--fault-rank", settings->fault_rank, "The rank that does it")->needs(fault);
  command.add_flag("--before-init", settings->before_init, "Before init() instead")->needs(fault);
  return [=] { run(*settings); };
}

}  // namespace lockstep::bench::victim
