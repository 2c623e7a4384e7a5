// Times what a strategy does with one bucket, from the gradient to the mean: encode, exchange,
// decode. Strategies take turns with a pass that reads a bucket, with the selection of its largest
// elements, and with torch.topk, all on all ranks at once.
//
//   lockstep run -n 2 bench_exchange [--elements N] [STRATEGY ...]
//
#include <ATen/ops/topk.h>
#include <kernels/select_largest.h>
#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "bench/machine.h"
#include "bench/train/largest.h"
#include "bench/train/models.h"

namespace lockstep::bench::exchange {
namespace {

struct Settings {
  std::int64_t elements = 25'000'000;
  int rounds = 9;
  std::vector<std::string> strategies{
      "fp32", "fp16", "bf16", "topk:0.01", "threshold:2.58", "int8", "int8:feedback=off"};
};

/// One strategy with its own bucket.
struct Exchanged {
  Exchanged(const std::string& text, std::int64_t elements, const lockstep::Group& world)
      : bucket(0, static_cast<std::size_t>(elements), at::kFloat, {}, world),
        exchange(lockstep::parse_strategy(text).exchange(bucket)) {}

  void run(const lockstep::Group& world) {
    auto task = exchange->exchange(step++, bucket, world);
    for (auto work = task.advance(); work.pending(); work = task.advance()) work.wait();
  }

  lockstep::Bucket bucket;
  std::unique_ptr<lockstep::Exchange> exchange;
  std::int64_t step = 0;
};

volatile float read_result;

/// The selection of the largest 1 %.
std::function<void()> selection_of(std::span<float> from) {
  const std::size_t k = std::max<std::size_t>(1, from.size() / 100);
  const std::size_t room = k + lockstep::kernels::select_slack;
  const auto space = std::make_shared<lockstep::kernels::SelectSpace<float>>(k);
  const auto indices = std::make_shared<std::vector<std::uint32_t>>(room);
  const auto values = std::make_shared<std::vector<float>>(room);
  return [=] {
    lockstep::kernels::select_top<float>(
        from, {}, *space, {std::span(*indices).first(k), std::span(*values).first(k)});
  };
}

std::vector<Timed> all_timed(const Settings& settings, const lockstep::Group& world,
                             const at::Tensor& gradient) {
  const std::int64_t k = std::max<std::int64_t>(1, settings.elements / 100);
  std::vector<Timed> all;
  const std::span from(gradient.mutable_data_ptr<float>(),
                       static_cast<std::size_t>(gradient.numel()));
  all.push_back({"read pass", [=] { read_result = read_pass(from); }});
  all.push_back({"select_top of 1 %", selection_of(from)});
  all.push_back({"torch.topk of 1 %", [=] { at::topk(gradient, k); }});
  for (const auto& text : settings.strategies) {
    const auto one = std::make_shared<Exchanged>(text, settings.elements, world);
    all.push_back({text, [=] { one->run(world); }, [=] { one->bucket.values().copy_(gradient); }});
  }
  return all;
}

void run(const Settings& settings, const lockstep::Group& world) {
  at::set_num_threads(1);
  const auto gradient = random_numbers({settings.elements}, world.rank());
  auto all = all_timed(settings, world, gradient);
  take_turns(all, settings.rounds, world);
  if (world.rank() > 0) return;
  const double pass = median(all.front().seconds);
  const auto dense = std::ranges::find(all, "fp32", &Timed::name);
  std::cout << "| " << settings.elements << " elements, " << world.size()
            << " ranks | ms | read passes | of fp32 |\n|---|---|---|---|\n"
            << std::fixed << std::setprecision(2);
  for (const auto& timed : all) {
    const double seconds = median(timed.seconds);
    std::cout << "| `" << timed.name << "` | " << 1000 * seconds << " | " << seconds / pass
              << " | ";
    if (dense != all.end()) std::cout << seconds / median(dense->seconds);
    std::cout << " |\n";
  }
}

}  // namespace

std::function<void()> program(CLI::App& command) {
  const auto settings = std::make_shared<Settings>();
  command.add_option("--elements", settings->elements, "float32 elements of the bucket")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--rounds", settings->rounds, "Turns, whose medians count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("strategies", settings->strategies, "As --strategy of the examples takes them")
      ->capture_default_str();
  return [=] { run(*settings, lockstep::init()); };
}

}  // namespace lockstep::bench::exchange
