// Measures collectives between tensors of devices, from the call to the device's end of it.
// `lockstep bench COLLECTIVE --device cuda` starts it, or a launcher:
//
//   lockstep run -n gpus bench_device all_reduce [--min 1KiB] [--max 64MiB] [--check] [--json]
//
// Ranks use their world's devices (LOCKSTEP_DEVICE, LOCKSTEP_DEVICE_BACKEND).
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "bench/row.h"
#include "bench/settings.h"
#include "bench/train/largest.h"
#include "device/device_communicator.h"
#include "lockstep/version.h"

namespace {

using namespace lockstep::bench;
using lockstep::Collective;
using lockstep::Group;
using lockstep::ReduceOp;

constexpr int warm_up = 3;
constexpr double row_seconds = 0.25;

/// The tensors of one collective, and their expected result.
class Exchanged {
 public:
  Exchanged(const Settings& settings, std::size_t bytes, const Group& world)
      : settings_(settings),
        world_(world),
        count_(static_cast<std::int64_t>(part_count(settings, bytes))) {
    const auto options =
        at::TensorOptions(world.device()).dtype(lockstep::device::scalar_type(settings.dtype));
    const auto all = count_ * world.size();
    const bool scatters = settings.collective == Collective::reduce_scatter;
    const bool gathers = settings.collective == Collective::all_gather;
    input_ = at::empty({scatters ? all : count_}, options);
    output_ = in_place(settings.collective) ? input_ : at::empty({gathers ? all : count_}, options);
  }

  void fill() const {
    input_.copy_(numbers(world_.rank()));
    // No expected number is -1: the result of an earlier repetition must not pass the check.
    if (settings_.check && !in_place(settings_.collective)) output_.fill_(-1);
  }

  lockstep::Work begin() const {
    switch (settings_.collective) {
      case Collective::broadcast:
        return world_.broadcast(input_, 0);
      case Collective::all_gather:
        return world_.all_gather(output_, input_);
      case Collective::reduce_scatter:
        return world_.reduce_scatter(output_, input_, settings_.op);
      default:
        if (!settings_.wire) return world_.all_reduce(input_, settings_.op);
        return world_.all_reduce(input_, settings_.op, lockstep::Wire{.dtype = *settings_.wire});
    }
  }

  /// The elements of this rank's result that are not as expected, after fill() and one collective.
  std::int64_t count_wrong() const {
    const auto got = output_.cpu().to(at::kDouble);
    const auto wanted = expected().to(at::kDouble);
    const double rounding = settings_.wire || output_.element_size() == 2 ? 1e-2 : 1e-6;
    return got.numel() - at::isclose(got, wanted, rounding, 0).sum().item<std::int64_t>();
  }

 private:
  /// Small whole numbers of a rank, whose sums are exact in every dtype.
  at::Tensor numbers(int rank) const {
    return at::arange(input_.numel(), at::kLong).add(rank + 1).remainder(3).to(input_.dtype());
  }
  at::Tensor expected() const {
    if (settings_.collective == Collective::broadcast) return numbers(0);
    std::vector<at::Tensor> ranks;
    for (int rank = 0; rank < world_.size(); ++rank) ranks.push_back(numbers(rank));
    if (settings_.collective == Collective::all_gather) return at::cat(ranks);
    auto reduced = reduce(at::stack(ranks).to(at::kDouble));
    if (!input_.is_floating_point()) reduced = reduced.trunc();
    if (settings_.collective == Collective::all_reduce) return reduced;
    return reduced.narrow(0, count_ * world_.rank(), count_);
  }
  at::Tensor reduce(const at::Tensor& ranks) const {
    switch (settings_.op) {
      case ReduceOp::avg:
        return ranks.mean(0);
      case ReduceOp::min:
        return ranks.amin(0);
      case ReduceOp::max:
        return ranks.amax(0);
      case ReduceOp::product:
        return ranks.prod(0);
      case ReduceOp::sum:
        return ranks.sum(0);
      default:
        throw std::runtime_error("reductions of bits are not measured");
    }
  }

  const Settings& settings_;
  Group world_;
  std::int64_t count_;
  at::Tensor input_, output_;
};

/// The slowest rank's seconds from the call until the device has completed the collective.
double time(const Exchanged& exchanged, const Group& world) {
  const c10::impl::VirtualGuardImpl device(world.device().type());
  exchanged.fill();
  device.synchronizeDevice(world.device().index());
  return slowest_seconds(world, [&] {
    exchanged.begin().wait();
    device.synchronizeDevice(world.device().index());
  });
}

Row measure(const Settings& settings, std::size_t bytes, const Group& world) {
  const Exchanged exchanged(settings, bytes, world);
  double longest = 0;
  for (int i = 0; i < warm_up; ++i) longest = time(exchanged, world);
  std::size_t repeats = settings.repeats;
  if (repeats == 0) {
    repeats = static_cast<std::size_t>(std::clamp(row_seconds / longest, 5.0, 1000.0));
  }
  std::vector<double> seconds;
  for (std::size_t i = 0; i < repeats; ++i) seconds.push_back(time(exchanged, world));
  Row row{.collective = settings.collective,
          .backend = std::string(world.communicator().backend()),
          .ranks = world.size(),
          .memory = Memory::device,
          .dtype = settings.dtype,
          .op = settings.op,
          .wire = settings.wire,
          .bytes = bytes,
          .count = part_count(settings, bytes),
          .time_us = median(seconds) * 1e6,
          .best_us = std::ranges::min(seconds) * 1e6,
          .repeats = repeats};
  if (settings.check) {
    auto wrong = at::full({1}, exchanged.count_wrong(), at::kLong);
    world.host().all_reduce(wrong).wait();
    row.wrong = wrong.item<std::int64_t>();
  }
  return row;
}

void run(Settings settings) {
  const Group world = lockstep::init();
  settings.ranks = world.size();
  check(settings);
  if (world.device().is_cpu()) {
    throw lockstep::InvalidArgument(
        "bench_device: got a world on the CPU, expected one on devices: see `lockstep doctor`, or "
        "measure memory of the host with `lockstep bench`");
  }
  const bool writes = world.rank() == 0;
  if (writes && !settings.json) {
    std::cout << "# lockstep " << lockstep::version() << ", " << name(settings.collective) << ", "
              << world.size() << " ranks on devices, the first on " << world.device()
              << ", backend " << world.communicator().backend() << '\n'
              << table_head() << std::flush;
  }
  for (const auto bytes : sizes(settings)) {
    const auto row = measure(settings, bytes, world);
    if (!writes) continue;
    std::cout << (settings.json ? json_line(row) + "\n" : table_line(row)) << std::flush;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures collectives between tensors of devices.");
  Settings settings;
  std::string collective, dtype = "float32", op = "sum", wire;
  std::vector<std::string> collectives;
  for (const auto each : measured) {
    if (each != Collective::barrier) collectives.emplace_back(name(each));
  }
  app.add_option("collective", collective)->required()->check(CLI::IsMember(collectives));
  app.add_option("--min", settings.min_bytes)->transform(CLI::AsSizeValue(true));
  app.add_option("--max", settings.max_bytes)->transform(CLI::AsSizeValue(true));
  app.add_option("--factor", settings.factor);
  app.add_option("--dtype", dtype);
  app.add_option("--op", op);
  app.add_option("--wire", wire);
  app.add_option("--repeats", settings.repeats);
  app.add_flag("--check", settings.check);
  app.add_flag("--json", settings.json);
  CLI11_PARSE(app, argc, argv);
  try {
    for (const auto each : measured) {
      if (name(each) == collective) settings.collective = each;
    }
    settings.dtype = lockstep::parse_dtype(dtype);
    settings.op = lockstep::parse_reduce_op(op);
    if (!wire.empty()) settings.wire = lockstep::parse_dtype(wire);
    run(settings);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
