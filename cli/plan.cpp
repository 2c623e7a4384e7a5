#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/plural.h"
#include "core/terminal.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "plan/fit.h"
#include "plan/forecast.h"
#include "plan/model_memory.h"

namespace lockstep::cli {
namespace {

using detail::fixed;

/// Default speed of one rank, from ResNet9's step in docs/results.md.
/// Units: floating-point operations per second.
constexpr double usual_rate = 47e9;
/// Fraction of a link's rate that is reached: 25 MiB between two simulated hosts in
/// docs/results.md.
constexpr double reached = 0.95;

struct PlanArguments {
  int nodes = 1;
  int ranks_per_node = 1;
  double link = 1e9;
  double latency_us = 60;
  double memory = 45;
  std::string model;
  std::size_t parameters = 0;
  int batch = 0;
  std::optional<double> step_ms;
  double overlap = 1;
  std::string measured;
  bool link_given = false;
  bool latency_given = false;
  bool memory_given = false;
  std::vector<std::string> strategies;
  std::string shard = "none";
  std::string optimizer = "momentum";
  bool share_memory = false;
  std::optional<double> host_memory;  ///< GiB
  double other_memory = 1;            ///< GiB
  bool json = false;
};

constexpr double gib = 1024.0 * 1024 * 1024;

/// This host's memory, for hosts whose memory is not given. Units: bytes.
double own_memory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void expect(bool holds, std::string_view what, double got, std::string_view expected) {
  if (!holds) {
    throw InvalidArgument(detail::concat("plan: ", what, ": got ", got, ", expected ", expected));
  }
}

/// Reads lines of `lockstep bench all_reduce --json`. Uses those with float32 in group memory and
/// more than plan::shortest_fitted bytes.
std::vector<plan::Measurement> read_measured(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw InvalidArgument(detail::concat("plan: --measured ", path, ": cannot be read"));
  std::vector<plan::Measurement> measurements;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    try {
      const auto row = nlohmann::json::parse(line);
      const auto backend = row.at("backend").get<std::string>();
      if (row.at("op") != "all_reduce" || row.at("dtype") != "float32" ||
          row.at("memory") != "group" || row.contains("wire") || row.at("time_us") <= 0 ||
          row.at("bytes") <= plan::shortest_fitted || (backend != "host" && backend != "mpi")) {
        continue;
      }
      using Over = plan::Measurement::Over;
      measurements.push_back({.over = backend == "host" ? Over::memory : Over::network,
                              .ranks = row.at("ranks").get<int>(),
                              .bytes = row.at("bytes").get<double>(),
                              .seconds = row.at("time_us").get<double>() * 1e-6});
    } catch (const nlohmann::json::exception&) {
      throw InvalidArgument(detail::concat("plan: --measured ", path, ": line ", number,
                                           ": expected a line of lockstep bench --json"));
    }
  }
  if (in.bad() || measurements.empty()) {
    throw InvalidArgument(detail::concat("plan: --measured ", path,
                                         ": expected lines of lockstep bench all_reduce --json, of "
                                         "float32 in group memory and more than 16 KiB; got none"));
  }
  return measurements;
}

/// The costs: given options first, then fitted to measurements, then the defaults.
Costs costs_of(const PlanArguments& arguments) {
  Costs costs;
  if (!arguments.measured.empty()) costs = plan::fit(costs, read_measured(arguments.measured));
  const bool defaults = arguments.measured.empty();
  constexpr double bits = 8;
  if (defaults || arguments.link_given) costs.sent_byte = bits / (arguments.link * reached);
  if (defaults || arguments.latency_given) costs.remote_message = arguments.latency_us * 1e-6;
  if (defaults || arguments.memory_given) costs.moved_byte = 1e-9 / arguments.memory;
  return costs;
}

/// The options of memory, checked.
struct MemorySetting {
  plan::Keeping keeping;
  plan::ModelMemory each;  ///< for each parameter
  double host_bytes;
  double other_bytes;  ///< of a rank, beside its model

  double largest(const plan::Keeping& kept) const {
    return plan::largest_model(kept, host_bytes, other_bytes);
  }
};

MemorySetting memory_of(const PlanArguments& arguments) {
  if (arguments.host_memory) {
    expect(*arguments.host_memory > 0 && *arguments.host_memory <= 1e9, "--host-memory",
           *arguments.host_memory, "GiB above 0");
  }
  expect(arguments.other_memory >= 0 && arguments.other_memory <= 1e9, "--other-memory",
         arguments.other_memory, "GiB from 0 on");
  const plan::Keeping keeping{.shard = plan::parse_shard(arguments.shard),
                              .share_memory = arguments.share_memory,
                              .state_tensors = plan::state_tensors(arguments.optimizer),
                              .nodes = arguments.nodes,
                              .ranks_per_node = arguments.ranks_per_node};
  return {.keeping = keeping,
          .each = plan::bytes_per_parameter(keeping),
          .host_bytes = arguments.host_memory ? *arguments.host_memory * gib : own_memory(),
          .other_bytes = arguments.other_memory * gib};
}

plan::Setting setting_of(const PlanArguments& arguments) {
  expect(arguments.nodes >= 1 && arguments.nodes <= 100'000, "--nodes", arguments.nodes,
         "1 to 100000");
  expect(arguments.ranks_per_node >= 1 && arguments.ranks_per_node <= 4096, "--ranks-per-node",
         arguments.ranks_per_node, "1 to 4096");
  expect(arguments.link > 0 && arguments.link <= 1e15, "--link", arguments.link,
         "bits a second above 0, as in 100gbit");
  expect(arguments.latency_us >= 0 && arguments.latency_us <= 1e9, "--latency",
         arguments.latency_us, "microseconds from 0 on");
  expect(arguments.memory > 0 && arguments.memory <= 1e9, "--memory", arguments.memory,
         "GB/s above 0");
  expect(arguments.overlap >= 0 && arguments.overlap <= 1, "--overlap", arguments.overlap,
         "a share from 0 to 1");
  if (arguments.model.empty() == (arguments.parameters == 0)) {
    throw InvalidArgument("plan: expected one of --model and --parameters");
  }
  plan::Setting setting{.nodes = arguments.nodes,
                        .ranks_per_node = arguments.ranks_per_node,
                        .model = arguments.model.empty() ? plan::model_of(arguments.parameters)
                                                         : plan::find_model(arguments.model),
                        .overlap = arguments.overlap,
                        .sharded = arguments.shard != "none"};
  setting.costs = costs_of(arguments);
  setting.batch = arguments.batch > 0 ? arguments.batch : setting.model.batch;
  if (arguments.step_ms) {
    expect(*arguments.step_ms > 0 && *arguments.step_ms <= 1e12, "--step-ms", *arguments.step_ms,
           "milliseconds above 0");
    setting.compute = *arguments.step_ms * 1e-3;
  } else if (setting.model.shapes_known) {
    setting.compute = setting.batch * setting.model.operations() / usual_rate;
  } else {
    throw InvalidArgument(
        "plan: got --parameters without --step-ms, expected how long a rank's "
        "step takes alone");
  }
  return setting;
}

void print_table(const plan::Setting& setting, bool assumed,
                 const std::vector<plan::Forecast>& forecasts) {
  const int ranks = setting.nodes * setting.ranks_per_node;
  if (setting.model.shapes_known) std::cout << setting.model.name << ", ";
  std::cout << detail::plural(setting.model.parameters(), "parameter") << ", batch "
            << setting.batch << " a rank; " << setting.nodes << " × " << setting.ranks_per_node
            << " = " << detail::plural(ranks, "rank") << '\n'
            << "a rank's step alone: " << fixed(setting.compute * 1e3, 1) << " ms"
            << (assumed ? ", assumed; measured ones by --step-ms" : "") << '\n';
  if (std::ranges::any_of(forecasts, [](const auto& one) { return one.strategy.text != "fp32"; })) {
    std::cout << "The forecast is of a step's time and knows nothing of convergence: strategies "
                 "other than fp32\nmay need more steps or reach a lower accuracy. Train with one "
                 "before you choose it.\n";
  }
  std::cout << '\n';
  std::cout << std::left << std::setw(20) << "strategy" << std::right << std::setw(12) << "step ms"
            << std::setw(12) << "efficiency" << std::setw(14) << "samples/s" << std::setw(12)
            << "coding ms" << std::setw(12) << "memory ms" << std::setw(12) << "network ms"
            << std::setw(12) << "hidden ms" << std::setw(14) << "MB a node" << '\n';
  for (const auto& one : forecasts) {
    std::cout << std::left << std::setw(20) << one.strategy.text << std::right << std::setw(12)
              << fixed(one.step * 1e3, 1) << std::setw(12) << fixed(one.efficiency, 3)
              << std::setw(14) << fixed(one.throughput, 1) << std::setw(12)
              << fixed(one.coding * 1e3, 2) << std::setw(12) << fixed(one.memory * 1e3, 2)
              << std::setw(12) << fixed(one.network * 1e3, 2) << std::setw(12)
              << fixed(one.hidden * 1e3, 2) << std::setw(14) << fixed(one.sent * 1e-6, 2) << '\n';
  }
  if (forecasts.size() > 1) {
    const bool colour = detail::shows_colour(STDOUT_FILENO);
    const std::string& fastest = forecasts.front().strategy.text;
    std::cout << "\nfastest: " << detail::in_tone(fastest, detail::Tone::strong, colour)
              << " (time of a step only)\n";
  }
}

/// "25.6 million", "1.2 billion".
std::string count_text(double count) {
  return count < 1e9 ? fixed(count * 1e-6, 1) + " million" : fixed(count * 1e-9, 2) + " billion";
}

/// The memory of each way to keep the model on these hosts.
void print_memory(const plan::Setting& setting, const PlanArguments& arguments,
                  const MemorySetting& memory) {
  const auto parameters = static_cast<double>(setting.model.parameters());
  std::cout << "\nmemory of float32 parameters, gradients and the state of " << arguments.optimizer
            << "; largest model for hosts of " << fixed(memory.host_bytes / gib, 1)
            << " GiB,\nof which each rank needs " << fixed(memory.other_bytes / gib, 1)
            << " GiB for other things\n\n"
            << std::left << std::setw(20) << "kept" << std::right << std::setw(16)
            << "bytes/parameter" << std::setw(14) << "MiB a rank" << std::setw(14) << "MiB a host"
            << std::setw(20) << "largest model" << '\n';
  const auto print = [&](std::string_view what, const plan::Keeping& keeping) {
    const auto each = plan::bytes_per_parameter(keeping);
    const bool chosen = keeping.shard == memory.keeping.shard &&
                        keeping.share_memory == memory.keeping.share_memory;
    const double host = each.of_host(setting.ranks_per_node);
    constexpr double mib = gib / 1024;
    std::cout << std::left << std::setw(20) << what << std::right << std::setw(16)
              << fixed(host / setting.ranks_per_node, 2) << std::setw(14)
              << fixed(parameters * each.of_rank() / mib, 1) << std::setw(14)
              << fixed(parameters * host / mib, 1) << std::setw(20)
              << count_text(memory.largest(keeping)) << (chosen ? "  <- chosen" : "") << '\n';
  };
  auto keeping = memory.keeping;
  keeping.share_memory = false;
  for (const auto shard : {plan::Shard::none, plan::Shard::optimizer, plan::Shard::gradients}) {
    keeping.shard = shard;
    print(shard == plan::Shard::none ? "whole on each rank"
                                     : detail::concat("--shard ", plan::name(shard)),
          keeping);
  }
  keeping.shard = plan::Shard::none;
  keeping.share_memory = true;
  print("--share-memory", keeping);
}

void print_json(const plan::Setting& setting, bool assumed,
                const std::vector<plan::Forecast>& forecasts, const PlanArguments& arguments,
                const MemorySetting& memory) {
  const auto parameters = static_cast<double>(setting.model.parameters());
  for (const auto& one : forecasts) {
    nlohmann::ordered_json line = {
        {"model", nullptr},
        {"parameters", setting.model.parameters()},
        {"nodes", setting.nodes},
        {"ranks_per_node", setting.ranks_per_node},
        {"batch", setting.batch},
        {"compute_ms", setting.compute * 1e3},
        {"compute_assumed", assumed},
        {"strategy", one.strategy.text},
        {"step_ms", one.step * 1e3},
        {"efficiency", one.efficiency},
        {"samples_per_second", one.throughput},
        {"coding_ms", one.coding * 1e3},
        {"memory_ms", one.memory * 1e3},
        {"network_ms", one.network * 1e3},
        {"hidden_ms", one.hidden * 1e3},
        {"sent_bytes_per_node", one.sent},
        {"optimizer", arguments.optimizer},
        {"shard", arguments.shard},
        {"share_memory", arguments.share_memory},
        {"bytes_per_rank", parameters * memory.each.of_rank()},
        {"bytes_per_node", parameters * memory.each.of_host(setting.ranks_per_node)},
        {"largest_parameters", memory.largest(memory.keeping)}};
    if (setting.model.shapes_known) line["model"] = setting.model.name;
    std::cout << line.dump() << '\n';
  }
}

void plan_main(const PlanArguments& arguments) {
  const auto setting = setting_of(arguments);
  const auto memory = memory_of(arguments);
  auto strategies = plan::usual_strategies();
  if (!arguments.strategies.empty()) {
    strategies.clear();
    for (const auto& text : arguments.strategies) strategies.push_back(plan::parse_strategy(text));
    const auto other = std::ranges::find_if(
        strategies, [](const auto& one) { return one.kind != plan::Strategy::Kind::fp32; });
    if (arguments.share_memory && other != strategies.end()) {
      throw InvalidArgument(detail::concat("plan: --share-memory: got strategy ", other->text,
                                           ", expected fp32, the strategy of shared memory"));
    }
  } else if (setting.sharded || arguments.share_memory) {
    strategies = {plan::parse_strategy("fp32")};
  } else if (!setting.model.shapes_known) {
    std::erase_if(strategies, [](const auto& one) { return one.needs_shapes(); });
  }
  const auto forecasts = plan::forecasts(setting, strategies);
  const bool assumed = !arguments.step_ms;
  if (arguments.json) return print_json(setting, assumed, forecasts, arguments, memory);
  print_table(setting, assumed, forecasts);
  print_memory(setting, arguments, memory);
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<PlanArguments>();
  auto* command = app.add_subcommand(
      "plan", "Forecast the time of a training step on any number of hosts by a cost model");
  command->footer(
      "As in: lockstep plan --nodes 64 --ranks-per-node 32 --link 100gbit --model resnet50");
  command->add_option("--nodes", arguments->nodes, "Number of hosts")->capture_default_str();
  command->add_option("--ranks-per-node", arguments->ranks_per_node, "Number of ranks on each host")
      ->capture_default_str();
  const std::map<std::string, double> units{
      {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}};
  auto* link =
      command->add_option("--link", arguments->link, "Rate of each host's network, such as 10mbit")
          ->transform(CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::Options(
                                                       CLI::AsNumberWithUnit::UNIT_REQUIRED |
                                                       CLI::AsNumberWithUnit::CASE_INSENSITIVE))
                          .description(""))
          ->type_name("RATE")
          ->default_str("1gbit");
  auto* latency =
      command->add_option("--latency", arguments->latency_us, "Time of a message between hosts")
          ->type_name("MICROSECONDS")
          ->capture_default_str();
  auto* memory =
      command
          ->add_option("--memory", arguments->memory,
                       "Memory bandwidth of the N ranks of a host: 2N times an all_reduce's algbw")
          ->type_name("GB/S")
          ->capture_default_str();
  command->add_option(
      "--model", arguments->model,
      "Model: cnn, mlp, resnet9, resnet18 or resnet50 (this or --parameters is required)");
  command
      ->add_option("--parameters", arguments->parameters,
                   "Number of float32 parameters of another model (this or --model is required)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000'000'000}).description(""));
  command
      ->add_option("--batch", arguments->batch,
                   "Samples in a rank's step (default: the model's usual)")
      ->check(CLI::Range(1, 100'000'000).description(""));
  command
      ->add_option(
          "--step-ms", arguments->step_ms,
          "Time of a rank's step without exchange (required with --parameters; default: by "
          "the model's operations, at 47 GFLOP/s)")
      ->type_name("MILLISECONDS");
  command
      ->add_option("--overlap", arguments->overlap,
                   "Share of the backward in which the network transfers data, from 0 to 1")
      ->type_name("SHARE")
      ->capture_default_str();
  command->add_option(
      "--strategy", arguments->strategies,
      "Strategy to forecast, such as topk:0.01; may be repeated (default: all that the "
      "model covers)");
  command
      ->add_option("--shard", arguments->shard,
                   "What each rank keeps a part of: none, optimizer (ZeRO-1) or gradients (ZeRO-2)")
      ->type_name("WHAT")
      ->capture_default_str();
  command
      ->add_option("--optimizer", arguments->optimizer,
                   "Optimizer, for its state: sgd, momentum, rmsprop, adagrad, adam, adamw or "
                   "amsgrad")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_flag("--share-memory", arguments->share_memory,
                    "The ranks of a host share one copy of parameters and state");
  command
      ->add_option("--host-memory", arguments->host_memory,
                   "Memory of each host, for the largest model (default: this host's)")
      ->type_name("GIB");
  command
      ->add_option("--other-memory", arguments->other_memory,
                   "Memory of each rank for other things: activations, data, the program")
      ->type_name("GIB")
      ->capture_default_str();
  command->add_flag("--json", arguments->json,
                    "Print one JSON object a strategy instead of a table");
  command
      ->add_option(
          "--measured", arguments->measured,
          "File with lines of lockstep bench all_reduce --json, to fit the costs to: from one "
          "host, and over MPI from hosts with one rank each")
      ->type_name("FILE");
  command->callback([arguments, link, latency, memory, &exit_code] {
    arguments->link_given = link->count() > 0;
    arguments->latency_given = latency->count() > 0;
    arguments->memory_given = memory->count() > 0;
    plan_main(*arguments);
    exit_code = 0;
  });
}

}  // namespace lockstep::cli
