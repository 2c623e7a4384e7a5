#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "plan/forecast.h"

namespace lockstep::cli {
namespace {

using detail::concat;
using detail::fixed;

/// Default speed of one rank, from ResNet9's step in docs/results.md.
/// Units: floating-point operations per second.
constexpr double usual_rate = 47e9;
/// Fraction of a link's rate that is reached: 25 MiB between two simulated hosts in
/// docs/results.md.
constexpr double reached = 0.95;
constexpr double mib = 1024.0 * 1024;
constexpr double gib = 1024 * mib;

struct PlanArguments {
  plan::Setting setting;
  double link = 1e9;      ///< bits per second
  double latency = 60;    ///< µs
  double bandwidth = 45;  ///< GB/s
  std::string model;
  std::optional<std::size_t> parameters;
  std::optional<int> batch;
  std::optional<double> step_ms;
  std::string measured;
  std::vector<std::string> strategies{"fp32", "fp16",        "bf16",       "topk:0.01",
                                      "int8", "power_sgd:4", "local_sgd:8"};
  std::string shard = "none";
  std::string optimizer = "momentum";
  std::optional<double> host_memory;  ///< GiB
  double other_memory = 1;            ///< GiB
  bool json = false;

  double largest(const plan::Keeping& keeping) const {
    return plan::largest_model(keeping, *host_memory * gib, other_memory * gib);
  }
};

/// Longest buffer that the cost formulas do not describe: it is sent with the announcement.
constexpr std::size_t longest_eager = 16 << 10;

/// Reads lines of `lockstep bench all_reduce --json`. Uses those with float32 in group memory and
/// more than longest_eager bytes.
std::vector<plan::Measurement> read_measured(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw InvalidArgument(concat("plan: --measured ", path, ": cannot be read"));
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
          row.at("bytes") <= longest_eager || (backend != "host" && backend != "mpi")) {
        continue;
      }
      measurements.push_back({.over_network = backend == "mpi",
                              .ranks = row.at("ranks").get<int>(),
                              .bytes = row.at("bytes").get<double>(),
                              .seconds = row.at("time_us").get<double>() * 1e-6});
    } catch (const nlohmann::json::exception&) {
      throw InvalidArgument(concat("plan: --measured ", path, ": line ", number,
                                   ": expected a line of lockstep bench --json"));
    }
  }
  if (in.bad() || measurements.empty()) {
    throw InvalidArgument(concat("plan: --measured ", path,
                                 ": expected lines of lockstep bench all_reduce --json, of "
                                 "float32 in group memory and more than 16 KiB; got none"));
  }
  return measurements;
}

/// The costs: given options first, then fitted to measurements, then the defaults.
Costs costs_of(const PlanArguments& arguments, const CLI::App& command) {
  const bool fitted = !arguments.measured.empty();
  Costs costs = fitted ? plan::fit({}, read_measured(arguments.measured)) : Costs{};
  const auto holds = [&](const char* option) { return !fitted || command.count(option) > 0; };
  if (holds("--link")) costs.sent_byte = 8 / (arguments.link * reached);
  if (holds("--latency")) costs.remote_message = arguments.latency * 1e-6;
  if (holds("--memory")) costs.moved_byte = 1e-9 / arguments.bandwidth;
  return costs;
}

/// Derives the setting from the other arguments.
void complete(PlanArguments& arguments, const CLI::App& command) {
  if (arguments.model.empty() != arguments.parameters.has_value()) {
    throw InvalidArgument("plan: expected one of --model and --parameters");
  }
  if (!arguments.host_memory) {  // this host's
    arguments.host_memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                            static_cast<double>(::sysconf(_SC_PAGESIZE)) / gib;
  }
  auto& setting = arguments.setting;
  setting.model = arguments.parameters ? plan::model_of(*arguments.parameters)
                                       : plan::find_model(arguments.model);
  setting.keeping.shard = plan::parse_shard(arguments.shard);
  setting.keeping.state_tensors = plan::state_tensors(arguments.optimizer);
  plan::bytes_per_parameter(setting.keeping);  // checks it
  setting.costs = costs_of(arguments, command);
  setting.batch = arguments.batch.value_or(setting.model.batch);
  setting.compute = arguments.step_ms ? *arguments.step_ms * 1e-3
                                      : setting.batch * setting.model.operations() / usual_rate;
}

/// The forecasts, the fastest first.
std::vector<plan::Forecast> forecasts_of(const PlanArguments& arguments, bool chosen) {
  const auto& keeping = arguments.setting.keeping;
  const bool only_fp32 = keeping.share_memory || keeping.shard != Shard::none;
  std::vector<plan::Forecast> all;
  for (const auto& text : arguments.strategies) {
    const auto strategy = plan::parse_strategy(text);
    const bool fits = only_fp32
                          ? strategy.kind == plan::Strategy::Kind::fp32
                          : !strategy.needs_shapes() || arguments.setting.model.shapes_known();
    if (chosen || fits) all.push_back(plan::forecast(arguments.setting, strategy));
  }
  std::ranges::stable_sort(all, {}, &plan::Forecast::step);
  return all;
}

void print_table(const PlanArguments& arguments, const std::vector<plan::Forecast>& forecasts) {
  const auto& setting = arguments.setting;
  const auto& keeping = setting.keeping;
  if (setting.model.shapes_known()) std::cout << setting.model.name << ", ";
  std::cout << detail::plural(setting.model.parameters(), "parameter") << ", batch "
            << setting.batch << " a rank; " << keeping.nodes << " × " << keeping.ranks_per_node
            << " = " << detail::plural(keeping.nodes * keeping.ranks_per_node, "rank") << '\n';
  if (std::ranges::any_of(forecasts, [](const auto& one) { return one.strategy.text != "fp32"; })) {
    std::cout << "The forecast is of a step's time and knows nothing of convergence: strategies "
                 "other than fp32\nmay need more steps or reach a lower accuracy. Train with one "
                 "before you choose it.\n";
  }
  std::vector<detail::Row> rows{{"strategy", "step ms", "efficiency", "samples/s", "coding ms",
                                 "memory ms", "network ms", "hidden ms", "MB a node"}};
  for (const auto& one : forecasts) {
    rows.push_back({one.strategy.text, fixed(one.step * 1e3, 1), fixed(one.efficiency, 3),
                    fixed(one.throughput, 1), fixed(one.coding * 1e3, 2),
                    fixed(one.memory * 1e3, 2), fixed(one.network * 1e3, 2),
                    fixed(one.hidden * 1e3, 2), fixed(one.sent * 1e-6, 2)});
  }
  std::cout << detail::table(
      concat("a rank's step alone: ", fixed(setting.compute * 1e3, 1), " ms",
             arguments.step_ms ? "" : ", assumed; measured ones by --step-ms", '\n'),
      rows);
}

/// The memory of each way to keep the model on these hosts.
void print_memory(const PlanArguments& arguments) {
  const auto parameters = static_cast<double>(arguments.setting.model.parameters());
  const int ranks = arguments.setting.keeping.ranks_per_node;
  std::vector<detail::Row> rows{
      {"kept", "bytes/parameter", "MiB a rank", "MiB a host", "largest model"}};
  const auto add = [&](std::string what, Shard shard, bool share_memory) {
    auto keeping = arguments.setting.keeping;
    const bool chosen = keeping.shard == shard && keeping.share_memory == share_memory;
    keeping.shard = shard;
    keeping.share_memory = share_memory;
    const auto each = plan::bytes_per_parameter(keeping);
    const double host = each.of_host(ranks);
    rows.push_back({std::move(what), fixed(host / ranks, 2),
                    fixed(parameters * each.of_rank / mib, 1), fixed(parameters * host / mib, 1),
                    fixed(arguments.largest(keeping) * 1e-6, 1) + " million"});
    if (chosen) rows.back().push_back("<- chosen");
  };
  add("whole on each rank", Shard::none, false);
  add("--shard optimizer", Shard::optimizer, false);
  add("--shard gradients", Shard::gradients, false);
  add("--share-memory", Shard::none, true);
  std::cout << '\n'
            << detail::table(
                   concat("memory of float32 parameters, gradients and the state of ",
                          arguments.optimizer, "; largest model for hosts of ",
                          fixed(*arguments.host_memory, 1), " GiB,\nof which each rank needs ",
                          fixed(arguments.other_memory, 1), " GiB for other things\n"),
                   rows);
}

void print_json(const PlanArguments& arguments, const std::vector<plan::Forecast>& forecasts) {
  const auto& setting = arguments.setting;
  const auto& keeping = setting.keeping;
  const auto parameters = static_cast<double>(setting.model.parameters());
  const auto each = plan::bytes_per_parameter(keeping);
  for (const auto& one : forecasts) {
    nlohmann::ordered_json line = {
        {"model", nullptr},
        {"parameters", setting.model.parameters()},
        {"nodes", keeping.nodes},
        {"ranks_per_node", keeping.ranks_per_node},
        {"batch", setting.batch},
        {"compute_ms", setting.compute * 1e3},
        {"compute_assumed", !arguments.step_ms},
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
        {"share_memory", keeping.share_memory},
        {"bytes_per_rank", parameters * each.of_rank},
        {"bytes_per_node", parameters * each.of_host(keeping.ranks_per_node)},
        {"largest_parameters", arguments.largest(keeping)}};
    if (setting.model.shapes_known()) line["model"] = setting.model.name;
    std::cout << line.dump() << '\n';
  }
}

void plan_main(PlanArguments& arguments, const CLI::App& command) {
  complete(arguments, command);
  const auto forecasts = forecasts_of(arguments, command.count("--strategy") > 0);
  if (arguments.json) return print_json(arguments, forecasts);
  print_table(arguments, forecasts);
  print_memory(arguments);
}

}  // namespace

void add_plan(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<PlanArguments>();
  auto& setting = arguments->setting;
  auto& keeping = setting.keeping;
  auto* command = app.add_subcommand(
      "plan", "Forecast the time of a training step on any number of hosts by a cost model");
  command->footer(
      "As in: lockstep plan --nodes 64 --ranks-per-node 32 --link 100gbit --model resnet50");
  add_number(command, "--nodes", keeping.nodes, 1, 1e5, "INT", "Number of hosts");
  add_number(command, "--ranks-per-node", keeping.ranks_per_node, 1, 4096, "INT",
             "Number of ranks on each host");
  const std::map<std::string, double> units{
      {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}};
  using WithUnit = CLI::AsNumberWithUnit;
  add_number(command, "--link", arguments->link, 1, 1e15, "RATE",
             "Rate of each host's network in bits per second, such as 10mbit")
      ->transform(
          WithUnit(units, WithUnit::Options(WithUnit::UNIT_REQUIRED | WithUnit::CASE_INSENSITIVE))
              .description(""))
      ->default_str("1gbit");
  add_number(command, "--latency", arguments->latency, 0, 1e9, "MICROSECONDS",
             "Time of a message between hosts");
  add_number(command, "--memory", arguments->bandwidth, 1e-6, 1e9, "GB/S",
             "Memory bandwidth of the N ranks of a host: 2N times an all_reduce's algbw");
  const auto add_text = [command](const char* name, std::string& value, const char* type,
                                  const char* text) {
    add_value(command, name, value, type, text)->capture_default_str();
  };
  add_text("--model", arguments->model, "NAME",
           "Model: cnn, mlp, resnet9, resnet18 or resnet50 (this or --parameters is required)");
  auto* step_ms = add_number(
      command, "--step-ms", arguments->step_ms, 1e-6, 1e12, "MILLISECONDS",
      "Time of a rank's step without exchange (required with --parameters; default: by the "
      "model's operations, at 47 GFLOP/s)");
  add_number(command, "--parameters", arguments->parameters, 1, 1e12, "UINT",
             "Number of float32 parameters of another model (this or --model is required)")
      ->needs(step_ms);
  add_number(command, "--batch", arguments->batch, 1, 1e8, "INT",
             "Samples in a rank's step (default: the model's usual)");
  add_number(command, "--overlap", setting.overlap, 0, 1, "SHARE",
             "Share of the backward in which the network transfers data, from 0 to 1");
  command->add_option(
      "--strategy", arguments->strategies,
      "Strategy to forecast, such as topk:0.01; may be repeated (default: all that the "
      "model covers)");
  add_text("--shard", arguments->shard, "WHAT",
           "What each rank keeps a part of: none, optimizer (ZeRO-1) or gradients (ZeRO-2)");
  add_text("--optimizer", arguments->optimizer, "NAME",
           "Optimizer, for its state: sgd, momentum, rmsprop, adagrad, adam, adamw or amsgrad");
  command->add_flag("--share-memory", keeping.share_memory,
                    "The ranks of a host share one copy of parameters and state");
  add_number(command, "--host-memory", arguments->host_memory, 1e-6, 1e9, "GIB",
             "Memory of each host, for the largest model (default: this host's)");
  add_number(command, "--other-memory", arguments->other_memory, 0, 1e9, "GIB",
             "Memory of each rank for other things: activations, data, the program");
  command->add_flag("--json", arguments->json,
                    "Print one JSON object a strategy instead of a table");
  add_text("--measured", arguments->measured, "FILE",
           "File with lines of lockstep bench all_reduce --json, to fit the costs to: from one "
           "host, and over MPI from hosts with one rank each");
  command->callback([arguments, command] { plan_main(*arguments, *command); });
}

}  // namespace lockstep::cli
