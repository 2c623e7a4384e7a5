#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "bench/ranks.h"
#include "bench/session.h"
#include "bench/settings.h"
#include "cli/command_line.h"
#include "comm/control/address.h"
#include "core/environment.h"
#include "launch/gpus.h"
#include "lockstep/error.h"

namespace lockstep::cli {

namespace {

/// Options of the command line, before names are converted to enumerators.
struct Arguments {
  std::string collective;
  std::string dtype = "float32";
  std::string op = "sum";
  std::string wire = {};
  std::string memory = "both";
  std::string backend = "auto";
  std::string device = "cpu";
  bench::Settings settings;
};

constexpr std::int64_t most_repeats = 1'000'000;

bench::Settings settings_of(const Arguments& arguments) {
  bench::Settings settings = arguments.settings;
  for (const Collective collective : bench::measured) {
    if (name(collective) == arguments.collective) settings.collective = collective;
  }
  settings.dtype = parse_dtype(arguments.dtype);
  settings.op = parse_reduce_op(arguments.op);
  if (!arguments.wire.empty()) settings.wire = parse_dtype(arguments.wire);
  if (arguments.memory == "group") settings.memories = {bench::Memory::group};
  if (arguments.memory == "private") settings.memories = {bench::Memory::own};
  bench::check(settings);
  return settings;
}

/// The words that a rank's program takes for these sizes, types and options.
std::vector<std::string> words_of(const Arguments& arguments) {
  const bench::Settings& settings = arguments.settings;
  std::vector<std::string> words{arguments.collective};
  const auto add = [&](const char* option, const std::string& value) {
    words.insert(words.end(), {option, value});
  };
  add("--min", std::to_string(settings.min_bytes));
  add("--max", std::to_string(settings.max_bytes));
  add("--factor", std::to_string(settings.factor));
  add("--dtype", arguments.dtype);
  add("--op", arguments.op);
  add("--repeats", std::to_string(settings.repeats));
  if (!arguments.wire.empty()) add("--wire", arguments.wire);
  if (settings.check) words.emplace_back("--check");
  if (settings.json) words.emplace_back("--json");
  return words;
}

/// The command line for the ranks.
std::vector<std::string> command_line(const Arguments& arguments) {
  auto words = words_of(arguments);
  words.insert(words.begin(), "bench");
  words.insert(words.end(), {"-n", std::to_string(arguments.settings.ranks)});
  words.insert(words.end(), {"--memory", arguments.memory});
  if (arguments.settings.stream) words.emplace_back("--stream");
  return words;
}

/// Whether tensors of devices are measured. With auto: where there are GPUs and the program for it.
bool measures_devices(const Arguments& arguments) {
  if (arguments.device != "auto") return arguments.device != "cpu";
  if (arguments.settings.collective == Collective::barrier) return false;
  return !bench::device_program().empty() && !launch::find_gpus().gpus.empty();
}

/// Throws: InvalidArgument if an option holds for memory of the host only.
int bench_devices(const Arguments& arguments) {
  const auto& settings = arguments.settings;
  const auto refuse = [](const std::string& option) {
    throw InvalidArgument("bench: got " + option +
                          " with tensors of devices, expected it with --device cpu only: omit it");
  };
  if (arguments.collective == name(Collective::barrier)) {
    throw InvalidArgument(
        "bench: got barrier with tensors of devices, expected a collective that moves data: a "
        "barrier is between the ranks' programs, measure it with --device cpu");
  }
  if (settings.threads) refuse("--threads");
  if (settings.stream) refuse("--stream");
  if (arguments.memory != "both") refuse("--memory " + arguments.memory);
  if (arguments.backend != "auto") refuse("--backend " + arguments.backend);
  if (!settings.algorithm.empty()) refuse("--algorithm " + settings.algorithm);
  if (!settings.interface.empty()) refuse("--interface " + settings.interface);
  return bench::run_device_program(settings, "cuda", words_of(arguments));
}

int bench_main(const Arguments& arguments) {
  const bench::Settings settings = settings_of(arguments);
  if (measures_devices(arguments)) return bench_devices(arguments);
  const auto run = [&](bench::Transport& transport) {
    try {
      bench::run_session(transport, settings, std::cout);
    } catch (const std::bad_alloc&) {
      throw Error("bench: this machine has too little memory for --max " +
                  std::to_string(settings.max_bytes) + " bytes on " +
                  std::to_string(settings.ranks) + " ranks");
    }
  };
  if (!settings.interface.empty()) {
    control::check_interface(settings.interface, "bench: --interface");
  }
  const Backend backend = parse_backend(arguments.backend);
  const auto refuse = [](const std::string& option, const char* how) {
    throw InvalidArgument("bench: got " + option + how);
  };
  constexpr auto without =
      " without a launcher of several hosts; start it as: mpirun -n N lockstep bench …";
  if (bench::world_size() > 0) {
    if (settings.threads) {
      refuse("--threads", " in a rank that a launcher has started as a process; omit it");
    }
    bench::run_as_rank(settings, backend, run);
  } else if (!settings.interface.empty()) {
    refuse("--interface " + settings.interface, without);
  } else if (!settings.algorithm.empty()) {
    refuse("--algorithm " + settings.algorithm, without);
  } else if (backend != Backend::automatic && backend != Backend::host) {
    refuse("--backend " + arguments.backend, without);
  } else if (settings.threads) {
    bench::run_threads(settings, run);
  } else {
    return bench::run_processes(settings, command_line(arguments));
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  bench::Settings& settings = arguments->settings;
  CLI::App* bench = app.add_subcommand(
      "bench", "Measure collectives between ranks of this machine, or of several under mpirun");
  std::vector<std::string> collectives;
  for (const Collective collective : bench::measured) collectives.emplace_back(name(collective));
  bench->add_option("collective", arguments->collective, "Collective to measure")
      ->required()
      ->check(CLI::IsMember(collectives));
  const auto add = [bench](const char* option, auto& value, const char* text) {
    return bench->add_option(option, value, text)->capture_default_str();
  };
  const CLI::Option* ranks = add("-n,--ranks", settings.ranks, "Number of ranks");
  bench->add_flag("--threads", settings.threads, "Use threads as ranks instead of processes");
  add("--min", settings.min_bytes, "Smallest size in bytes, such as 1000 or 1KiB")
      ->transform(CLI::AsSizeValue(true))
      ->default_str("1KiB");
  add("--max", settings.max_bytes, "Largest size in bytes")
      ->transform(CLI::AsSizeValue(true))
      ->default_str("64MiB");
  add("--factor", settings.factor, "Ratio of each size to the one before")
      ->check(CLI::Range(2, 1 << 30));
  add("--dtype", arguments->dtype, "Type of the elements, such as float32");
  add("--op", arguments->op, "Reduction: sum, avg, min, max, product, band, bor or bxor");
  bench->add_option(
      "--wire", arguments->wire,
      "Wire dtype of an all_reduce of float32: float16 or bfloat16 (default: float32)");
  add("--memory", arguments->memory, "Memory of the data: group, private or both")
      ->check(CLI::IsMember({"group", "private", "both"}));
  add("--device", arguments->device,
      "Memory of the data: cpu: of the host; cuda: tensors on GPUs, a GPU for each rank; auto: "
      "cuda where there are GPUs")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}).description(""));
  add("--backend", arguments->backend,
      "Backend of the ranks: auto or host; on several hosts also hierarchical, tcp or mpi")
      ->check(CLI::IsMember({"auto", "host", "mpi", "hierarchical", "tcp"}));
  bench
      ->add_option("--algorithm", settings.algorithm,
                   "Algorithm of an all_reduce over MPI: auto, direct or ring (default: "
                   "LOCKSTEP_ALGORITHM, else auto)")
      ->check(CLI::IsMember({"auto", "direct", "ring"}).description(""));
  add_value(
      bench, "--interface", settings.interface, "NAME",
      "Network interface by which hosts watch one another (default: LOCKSTEP_INTERFACE, else all)");
  add("--repeats", settings.repeats, "Measured repetitions of each size; 0: as many as fill 0.25 s")
      ->check(CLI::Range(std::int64_t{0}, most_repeats));
  bench->add_flag("--check", settings.check, "Compare every result with the expected one");
  bench->add_flag("--stream", settings.stream, "Also measure the bandwidth of the memory");
  bench->add_flag("--json", settings.json, "Print one JSON object a line instead of a table");
  bench->callback([arguments, ranks, &exit_code] {
    // Under a launcher, the default number of ranks is the world size.
    const int size = bench::world_size();
    if (ranks->count() == 0 && size > 0) arguments->settings.ranks = size;
    exit_code = bench_main(*arguments);
  });
}

}  // namespace lockstep::cli
