#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cli/command_line.h"
#include "core/environment.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tune/tuning.h"

namespace lockstep::cli {
namespace {

using detail::concat;
using detail::fixed;
using nlohmann::ordered_json;

struct TuneArguments {
  tune::Program program;
  tune::Search search;
  tune::Durations durations;
  std::string topology;
  bool dry_run = false;
  bool json = false;

  std::string unit_name() const { return program.global_batch ? "samples/s" : "batches/s"; }
};

/// "2x16": 2 NUMA nodes of 16 cores each.
Topology parse_topology(const std::string& text) {
  const auto cross = std::min(text.find('x'), text.size() - 1);
  const int nodes = detail::parse_number<int>(text.substr(0, cross)).value_or(0);
  const int cores = detail::parse_number<int>(text.substr(cross + 1)).value_or(0);
  constexpr int most = 4096;
  if (nodes < 1 || cores < 1 || nodes > most || cores > most / nodes) {
    throw InvalidArgument(concat("tune: --topology: got '", text,
                                 "', expected NODESxCORES, as 2x16 for 2 NUMA nodes of 16 cores "
                                 "each, and at most 4096 cores"));
  }
  Topology topology;
  for (int cpu = 0; cpu < nodes * cores; ++cpu) {
    topology.cores.push_back({.node = cpu / cores, .package = cpu / cores, .cpus = {cpu}});
  }
  return topology;
}

/// Three significant digits of a rate, or more.
std::string rate_text(double rate) { return fixed(rate, rate < 10 ? 2 : rate < 100 ? 1 : 0); }

std::string command_of(const tune::Candidate& candidate, const TuneArguments& arguments,
                       const Topology& topology) {
  return tune::command_of(candidate, arguments.program, topology, launch::inherited_environment());
}

void print_candidates(const TuneArguments& arguments, const Topology& topology,
                      const std::vector<tune::Candidate>& layouts) {
  const auto print = [&](const std::string& title, const std::vector<tune::Candidate>& all) {
    std::vector<detail::Row> rows;
    for (const auto& one : all) {
      rows.push_back({tune::text(one), command_of(one, arguments, topology)});
    }
    std::cout << detail::table(title, rows) << '\n';
  };
  std::cout << detail::plural(topology.cores.size(), "core") << ", "
            << detail::plural(topology.nodes().size(), "NUMA node") << "; each candidate runs "
            << detail::plural(arguments.search.rounds, "time") << "\n\n";
  print("Stage 1", layouts);
  const auto several = std::ranges::find_if(layouts, [](const auto& one) { return one.ranks > 1; });
  if (several != layouts.end()) {
    print(concat("Stage 2, for the fastest layout of several ranks, as of ", tune::text(*several)),
          tune::variants(*several, arguments.search));
    std::cout << "Stage 3, if several settings of stage 2 were faster: these together\n";
  }
}

void print_table(const TuneArguments& arguments, const Topology& topology,
                 const std::vector<tune::Row>& rows, const tune::Verdict& verdict) {
  std::vector<detail::Row> table{{"", arguments.unit_name(), "lowest", "highest", "step", ""}};
  const auto measured = tune::ranked(rows);
  for (const auto* row : measured) {
    const bool equal = tune::equal_within_spread(*row, *measured.front());
    table.push_back({tune::text(row->candidate), rate_text(row->median()), rate_text(row->lowest()),
                     rate_text(row->highest()), concat(fixed(row->step() * 1e3, 1), " ms"),
                     row == verdict.best ? "best"
                     : equal             ? "equal to the fastest"
                                         : ""});
  }
  const auto& batch = arguments.program.global_batch;
  std::cout << detail::table(
      batch ? concat("Samples of all ranks per second, ", *batch, " in each step")
            : "Batches of all ranks per second. A rank's batch is the same for all, so the global "
              "batch grows with ranks",
      table);
  for (const auto& row : rows) {
    if (row.problem.empty()) continue;
    std::cout << "\nnot measured: " << tune::text(row.candidate) << '\n' << row.problem << '\n';
  }
  if (verdict.best == nullptr) return;
  std::cout << '\n';
  if (arguments.search.rounds == 1) {
    std::cout << "Each candidate ran once, so the spread between runs is not known.\n";
  }
  for (const auto& line : tune::lines(verdict, static_cast<int>(topology.cores.size()))) {
    std::cout << line << '\n';
  }
  const bool colour = detail::shows_colour(STDOUT_FILENO);
  const auto command = command_of(verdict.best->candidate, arguments, topology);
  std::cout << "\nbest: " << detail::in_tone(command, detail::Tone::strong, colour) << '\n';
}

ordered_json value_if(bool known, ordered_json value) { return known ? value : ordered_json(); }

ordered_json json_of(const tune::Row& row, const TuneArguments& arguments,
                     const Topology& topology) {
  const auto& one = row.candidate;
  return {{"ranks", one.ranks},
          {"threads", one.threads},
          {"bind", one.bind == launch::Bind::cores ? "cores" : "none"},
          {"bucket_mib", one.bucket},
          {"share_memory", one.share_memory},
          {"command", command_of(one, arguments, topology)},
          {"rate", value_if(row.measured(), row.median())},
          {"rates", row.rates},
          {"step_ms", value_if(row.measured(), row.step() * 1e3)},
          {"problem", value_if(!row.problem.empty(), row.problem)}};
}

void print_json(const TuneArguments& arguments, const Topology& topology,
                const std::vector<tune::Row>& rows, const tune::Verdict& verdict) {
  const auto cores = static_cast<int>(topology.cores.size());
  ordered_json json{{"program", arguments.program.name},
                    {"arguments", arguments.program.arguments},
                    {"cores", cores},
                    {"numa_nodes", topology.nodes().size()},
                    {"rate_unit", arguments.unit_name()},
                    {"candidates", ordered_json::array()},
                    {"best", nullptr},
                    {"one_process_wins", verdict.one_process_wins()},
                    {"several_ranks_win", verdict.several_ranks_win()},
                    {"scaling", nullptr},
                    {"text", tune::lines(verdict, cores)}};
  for (const auto& row : rows) json["candidates"].push_back(json_of(row, arguments, topology));
  if (verdict.best != nullptr) json["best"] = json_of(*verdict.best, arguments, topology);
  if (const auto& scaling = verdict.scaling; scaling.problem.empty()) {
    const auto change = scaling.change(cores);
    json["scaling"] = {{"serial_ms", scaling.serial * 1e3},
                       {"parallel_ms", scaling.parallel * 1e3},
                       {"added_ms_per_rank", scaling.added * 1e3},
                       {"changes_at_cores", value_if(change.has_value(), change.value_or(0))}};
  }
  std::cout << json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
}

int measure(const TuneArguments& arguments, const Topology& topology,
            const std::vector<tune::Candidate>& layouts) {
  const auto inherited = launch::inherited_environment();
  const auto run = [&](const tune::Candidate& candidate, const std::string& stage) {
    std::cerr << stage << ": " << tune::text(candidate) << ": " << std::flush;
    const auto plan = tune::plan_of(candidate, arguments.program, topology, inherited);
    const auto trial = tune::run_trial(plan, arguments.durations);
    std::cerr << (trial.problem.empty() ? concat(fixed(trial.step * 1e3, 1), " ms a step, ",
                                                 detail::plural(trial.steps, "step"))
                                        : std::string("not measured"))
              << std::endl;
    return trial;
  };
  try {
    const auto rows = tune::measure(layouts, arguments.search, run);
    const auto verdict = tune::conclude(rows, arguments.search.global_batch.has_value());
    arguments.json ? print_json(arguments, topology, rows, verdict)
                   : print_table(arguments, topology, rows, verdict);
    return std::ranges::any_of(rows, &tune::Row::measured) ? 0 : 1;
  } catch (const tune::Interrupted& interrupted) {
    std::cerr << "\nlockstep: tune: ended by a signal, no rank is left" << std::endl;
    return 128 + interrupted.signal;
  }
}

int tune_main(TuneArguments& arguments, const CLI::App& command) {
  auto& program = arguments.program;
  std::tie(program.name, program.arguments) = program_words(command);
  arguments.search.global_batch = program.global_batch;
  const auto topology =
      arguments.topology.empty() ? Topology::read() : parse_topology(arguments.topology);
  const auto layouts = tune::layouts(topology, program, arguments.search);
  if (!arguments.dry_run) return measure(arguments, topology, layouts);
  print_candidates(arguments, topology, layouts);
  return 0;
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "tune", "Measure a program with several numbers of ranks and threads and other settings");
  const auto arguments = std::make_shared<TuneArguments>();
  auto& search = arguments->search;
  auto& durations = arguments->durations;
  command->footer(
      "Runs the program many times and ends it by SIGTERM: let it write to a scratch folder.\n"
      "As in: lockstep tune --global-batch 128 ./program --batch-size {batch}");
  const auto add_list = [command](const char* name, std::vector<int>& values, const char* text) {
    return add_number(command, name, values, 1, 1 << 20, "LIST", text)
        ->allow_extra_args(false)  // which would be the program's
        ->delimiter(',');
  };
  add_list("--ranks", search.ranks,
           "Numbers of ranks to compare, as 1,2,4 (default: all that divide the cores)");
  add_list("--buckets", search.buckets, "Bucket sizes in MiB to compare with the default of 25")
      ->default_str("5,100");
  add_number(
      command, "--global-batch", arguments->program.global_batch, 1, 1e9, "SAMPLES",
      "Samples of all ranks in a step. {batch} in the program's arguments becomes SAMPLES / "
      "ranks; without it, the program must divide the batch itself (default: a rank's batch is "
      "the same for all)");
  add_number(command, "--rounds", search.rounds, 1, 1000, "TIMES",
             "Number of runs of each candidate");
  add_number(command, "--seconds", durations.measured, 0, 1e6, "SECONDS", "Measured time of a run");
  add_number(command, "--warm-up", durations.warm_up, 0, 1e6, "SECONDS",
             "Time from a run's first step to the measurement");
  add_number(command, "--limit", durations.limit, 0.1, 1e6, "SECONDS",
             "Longest time of a run. A run without a measured step then counts as failed");
  auto* dry_run =
      command->add_flag("--dry-run", arguments->dry_run, "Print the candidates and run nothing");
  add_value(command, "--topology", arguments->topology, "NODESxCORES",
            "With --dry-run: a host to print the candidates for, as 2x16 for 2 NUMA nodes of 16 "
            "cores each (default: this host)")
      ->needs(dry_run);
  command->add_flag("--json", arguments->json, "Print one JSON object instead of a table");
  add_program(command);
  command->callback(
      [arguments, command, &exit_code] { exit_code = tune_main(*arguments, *command); });
}

}  // namespace lockstep::cli
