#include "bench/ranks.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "bench/machine.h"
#include "comm/host/host.h"
#include "core/environment.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "join/join_world.h"
#include "launch/launch.h"
#include "lockstep/error.h"

namespace lockstep::bench {

namespace {

/// Starts the program on so many ranks, as `lockstep run` would. Returns the job's exit code.
int run_job(const Settings& settings, const std::filesystem::path& program,
            const std::vector<std::string>& arguments, const std::string& device = {}) {
  launch::Options options;
  options.ranks = settings.ranks;
  options.program = program;
  options.arguments = arguments;
  options.device = device;
  return launch::run(launch::make_plan(options));
}

/// Whether a sum in another order than the ranks' may have other bits.
bool order_matters(const Settings& settings) {
  const bool floats = settings.dtype == DType::f32 || settings.dtype == DType::f64;
  return floats && settings.op != ReduceOp::min && settings.op != ReduceOp::max;
}

}  // namespace

void run_threads(const Settings& settings, const RankFunction& fn) {
  const auto world = host::World::create(settings.ranks);
  const auto division = launch::divide_cores(Topology::read(), settings.ranks, launch::Bind::cores);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run_rank = [&](int rank) {
    // A rank that throws leaves the world once its failure is on record, and not before.
    std::optional<CommunicatorTransport> transport;
    try {
      if (const auto i = static_cast<std::size_t>(rank); i < division.cpus.size()) {
        keep_to(division.cpus[i]);
      }
      transport.emplace(host::create(world, rank, {.timeout = Environment::get().timeout}));
      fn(*transport);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      world->fail({.rank = rank, .text = error.what()});
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < settings.ranks; ++rank) threads.emplace_back(run_rank, rank);
  }
  if (first) std::rethrow_exception(first);
}

int world_size() {
  const auto& environment = Environment::get();
  if (environment.world_size) return *environment.world_size;
  const auto& launcher = environment.launcher;
  // A program that srun started need not be a rank.
  const bool has_ranks = launcher && launcher->kind != Launcher::Kind::srun && launcher->size > 1;
  return has_ranks ? launcher->size : 0;
}

void run_as_rank(const Settings& settings, Backend backend, const RankFunction& fn) {
  auto algorithm = settings.algorithm;
  const bool checks_order = settings.check && order_matters(settings);
  if (checks_order && algorithm == "ring") {
    throw InvalidArgument(
        "bench: --check compares with sums in the order of ranks; a ring sums each slice in "
        "another");
  }
  if (checks_order) algorithm = "direct";
  const auto group = lockstep::detail::join_world(
      {.backend = backend, .algorithm = algorithm, .interface = settings.interface});
  if (group->size() != settings.ranks) {
    throw InvalidArgument(lockstep::detail::concat("bench: -n is ", settings.ranks,
                                                   ", but this process is a rank of a world of ",
                                                   group->size()));
  }
  if (settings.check && group->backend() == name(Backend::hierarchical)) {
    throw InvalidArgument(
        "bench: --check compares with sums in the order of ranks; a hierarchy sums host by host");
  }
  CommunicatorTransport transport(group);
  fn(transport);
}

int run_processes(const Settings& settings, const std::vector<std::string>& arguments) {
  return run_job(settings, std::filesystem::read_symlink("/proc/self/exe"), arguments);
}

std::filesystem::path device_program() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bench_device";
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

int run_device_program(const Settings& settings, const std::string& device,
                       const std::vector<std::string>& arguments) {
  const auto program = device_program();
  if (program.empty()) {
    throw BackendUnavailable(
        "bench: got --device " + device +
        ", but the program bench_device, which measures tensors of devices, is not in the folder "
        "of lockstep: build it in Lockstep's sources (cmake --build build --target bench_device) "
        "and use the lockstep of that build");
  }
  if (world_size() == 0) return run_job(settings, program, arguments, device);
  ::setenv("LOCKSTEP_DEVICE", device.c_str(), 1);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  throw Error(lockstep::detail::concat("bench: cannot start ", program.string()));
}

}  // namespace lockstep::bench
