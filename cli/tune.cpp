#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "core/environment.h"
#include "core/plural.h"
#include "core/terminal.h"
#include "core/text.h"
#include "launch/describe.h"
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
  double warm_up = 1;
  double seconds = 3;
  double limit = 60;
  std::string ranks;
  std::string buckets = "5,100";
  std::string topology;
  bool dry_run = false;
  bool json = false;
  std::string placeholder;
};

/// "1,2,4": numbers from 1 to most.
std::vector<int> parse_list(const char* option, const std::string& text, int most) {
  std::vector<int> numbers;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    numbers.push_back(detail::parse_number<int>(word).value_or(0));
    if (numbers.back() >= 1 && numbers.back() <= most) continue;
    throw InvalidArgument(concat("tune: ", option, ": got '", text,
                                 "', expected numbers from 1 to ", most, ", as 1,2,4"));
  }
  return numbers;
}

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

std::chrono::duration<double> seconds(const char* option, double value, double least) {
  if (!(value >= least && value <= 1e6)) {
    throw InvalidArgument(
        concat("tune: ", option, ": got ", value, ", expected seconds from ", least, " to 1e6"));
  }
  return std::chrono::duration<double>(value);
}

tune::Durations durations_of(const TuneArguments& arguments) {
  return {.warm_up = seconds("--warm-up", arguments.warm_up, 0),
          .measured = seconds("--seconds", arguments.seconds, 0),
          .limit = seconds("--limit", arguments.limit, 0.1)};
}

/// Rates are in samples with a global batch, else in batches of a rank.
double unit_of(const TuneArguments& arguments) {
  return arguments.program.global_batch.value_or(1);
}
std::string unit_name(const TuneArguments& arguments) {
  return arguments.program.global_batch ? "samples/s" : "batches/s";
}

/// Three significant digits of a rate, or more.
std::string rate_text(double rate) { return fixed(rate, rate < 10 ? 2 : rate < 100 ? 1 : 0); }

void print_candidates(const TuneArguments& arguments, const Topology& topology,
                      const std::vector<tune::Candidate>& layouts) {
  const auto print = [&](const std::string& title, const std::vector<tune::Candidate>& all) {
    std::vector<launch::Row> rows;
    for (const auto& one : all) {
      rows.push_back({tune::text(one), tune::command_of(one, arguments.program, topology)});
    }
    std::cout << launch::table(title, rows) << '\n';
  };
  std::cout << detail::plural(topology.cores.size(), "core") << ", "
            << detail::plural(topology.nodes().size(), "NUMA node") << "; each candidate runs "
            << detail::plural(arguments.search.rounds, "time") << "\n\n";
  print("Stage 1", layouts);
  const auto several = std::ranges::find_if(layouts, [](const auto& one) { return one.ranks > 1; });
  if (several != layouts.end()) {
    print(concat("Stage 2, for the fastest layout of several ranks, as of ", tune::text(*several)),
          tune::variants(*several, arguments.search.space));
    std::cout << "Stage 3, if several settings of stage 2 were faster: these together\n";
  }
}

void print_rows(const TuneArguments& arguments, const std::vector<tune::Row>& rows,
                const tune::Verdict& verdict) {
  const bool same = arguments.search.same_global_batch;
  std::vector<const tune::Row*> measured;
  for (const auto& row : rows) {
    if (row.measured()) measured.push_back(&row);
  }
  std::ranges::stable_sort(measured, std::greater<>(), &tune::Row::median);
  std::vector<launch::Row> table{{"", unit_name(arguments), "lowest", "highest", "step", ""}};
  for (const auto* row : measured) {
    const double unit = unit_of(arguments);
    table.push_back({tune::text(row->candidate), rate_text(unit * row->median()),
                     rate_text(unit * row->lowest()), rate_text(unit * row->highest()),
                     concat(fixed(row->step(same) * 1e3, 1), " ms"),
                     row == verdict.best                                  ? "best"
                     : tune::equal_within_spread(*row, *measured.front()) ? "equal to the fastest"
                                                                          : ""});
  }
  std::cout << launch::table(arguments.search.same_global_batch
                                 ? concat("Samples of all ranks per second, ",
                                          *arguments.program.global_batch, " in each step")
                                 : "Batches of all ranks per second. A rank's batch is the same "
                                   "for all, so the global batch grows with ranks",
                             table);
  for (const auto& row : rows) {
    if (row.problem.empty()) continue;
    std::cout << "\nnot measured: " << tune::text(row.candidate) << '\n' << row.problem << '\n';
  }
}

void print(const TuneArguments& arguments, const Topology& topology,
           const std::vector<tune::Row>& rows) {
  const auto verdict = tune::conclude(rows, arguments.search.same_global_batch);
  print_rows(arguments, rows, verdict);
  if (verdict.best == nullptr) return;
  std::cout << '\n';
  if (arguments.search.rounds == 1) {
    std::cout << "Each candidate ran once, so the spread between runs is not known.\n";
  }
  for (const auto& line : tune::lines(verdict, static_cast<int>(topology.cores.size()))) {
    std::cout << detail::wrapped(line, 100) << '\n';
  }
  const bool colour = detail::shows_colour(STDOUT_FILENO);
  const auto command = tune::command_of(verdict.best->candidate, arguments.program, topology);
  std::cout << "\nbest: " << detail::in_tone(command, detail::Tone::strong, colour) << '\n';
}

ordered_json json_of(const tune::Row& row, const TuneArguments& arguments,
                     const Topology& topology) {
  const auto& one = row.candidate;
  ordered_json json{{"ranks", one.ranks},
                    {"threads", one.threads},
                    {"bind", one.bind == launch::Bind::cores ? "cores" : "none"},
                    {"bucket_mib", one.bucket},
                    {"share_memory", one.share_memory},
                    {"command", tune::command_of(one, arguments.program, topology)},
                    {"rate", nullptr},
                    {"rates", ordered_json::array()},
                    {"step_ms", nullptr},
                    {"problem", nullptr}};
  if (!row.problem.empty()) json["problem"] = row.problem;
  if (!row.measured()) return json;
  const double unit = unit_of(arguments);
  json["rate"] = unit * row.median();
  for (const double rate : row.rates) json["rates"].push_back(unit * rate);
  json["step_ms"] = row.step(arguments.search.same_global_batch) * 1e3;
  return json;
}

void print_json(const TuneArguments& arguments, const Topology& topology,
                const std::vector<tune::Row>& rows) {
  const auto verdict = tune::conclude(rows, arguments.search.same_global_batch);
  const auto cores = static_cast<int>(topology.cores.size());
  ordered_json json{{"program", arguments.program.name},
                    {"arguments", arguments.program.arguments},
                    {"cores", cores},
                    {"numa_nodes", topology.nodes().size()},
                    {"rate_unit", unit_name(arguments)},
                    {"candidates", ordered_json::array()},
                    {"best", nullptr},
                    {"one_process_wins", verdict.one_process_wins()},
                    {"several_ranks_win", verdict.several_ranks_win()},
                    {"scaling", nullptr},
                    {"text", tune::lines(verdict, cores)}};
  for (const auto& row : rows) json["candidates"].push_back(json_of(row, arguments, topology));
  if (verdict.best != nullptr) json["best"] = json_of(*verdict.best, arguments, topology);
  if (const auto& scaling = verdict.scaling; scaling.problem.empty()) {
    json["scaling"] = {{"serial_ms", scaling.serial * 1e3},
                       {"parallel_ms", scaling.parallel * 1e3},
                       {"added_ms_per_rank", scaling.added * 1e3},
                       {"changes_at_cores", nullptr}};
    if (const auto change = scaling.change(cores); change && cores > 1) {
      json["scaling"]["changes_at_cores"] = *change;
    }
  }
  std::cout << json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
}

int measure(const TuneArguments& arguments, const Topology& topology,
            const std::vector<tune::Candidate>& layouts) {
  const auto durations = durations_of(arguments);
  const auto inherited = launch::inherited_environment();
  const auto run = [&](const tune::Candidate& candidate, const std::string& stage) {
    std::cerr << stage << ": " << tune::text(candidate) << ": " << std::flush;
    const auto plan = tune::plan_of(candidate, arguments.program, topology, inherited);
    const auto trial = tune::run_trial(plan, durations);
    std::cerr << (trial.problem.empty() ? concat(fixed(trial.step * 1e3, 1), " ms a step, ",
                                                 detail::plural(trial.steps, "step"))
                                        : std::string("not measured"))
              << std::endl;
    return trial;
  };
  try {
    const auto rows = tune::measure(layouts, arguments.search, run);
    arguments.json ? print_json(arguments, topology, rows) : print(arguments, topology, rows);
    return std::ranges::any_of(rows, &tune::Row::measured) ? 0 : 1;
  } catch (const tune::Interrupted& interrupted) {
    std::cerr << "\nlockstep: tune: ended by a signal, no rank is left" << std::endl;
    return 128 + interrupted.signal;
  }
}

int tune_main(TuneArguments& arguments, const CLI::App& command) {
  auto& program = arguments.program;
  std::tie(program.name, program.arguments) = program_words(command);
  tune::check(program);
  constexpr int most = 1 << 20;
  arguments.search.space = {.ranks = parse_list("--ranks", arguments.ranks, most),
                            .buckets = parse_list("--buckets", arguments.buckets, most)};
  arguments.search.same_global_batch = program.global_batch.has_value();
  if (!arguments.topology.empty() && !arguments.dry_run) {
    throw InvalidArgument("tune: got --topology without --dry-run, expected both or none");
  }
  const auto topology =
      arguments.topology.empty() ? Topology::read() : parse_topology(arguments.topology);
  const auto layouts = tune::layouts(topology, program, arguments.search.space);
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
  command->footer(
      "Runs the program many times and ends it by SIGTERM: let it write to a scratch folder.\n"
      "As in: lockstep tune --global-batch 128 ./program --batch-size {batch}");
  command
      ->add_option("--ranks", arguments->ranks,
                   "Numbers of ranks to compare, as 1,2,4 (default: all that divide the cores)")
      ->type_name("LIST");
  command
      ->add_option("--buckets", arguments->buckets,
                   "Bucket sizes in MiB to compare with the default of 25")
      ->type_name("LIST")
      ->capture_default_str();
  command
      ->add_option(
          "--global-batch", arguments->program.global_batch,
          "Samples of all ranks in a step. {batch} in the program's arguments becomes "
          "SAMPLES / ranks; without it, the program must divide the batch itself (default: "
          "a rank's batch is the same for all)")
      ->type_name("SAMPLES");
  command->add_option("--rounds", search.rounds, "Number of runs of each candidate")
      ->check(CLI::Range(1, 1000).description(""))
      ->type_name("TIMES")
      ->capture_default_str();
  command->add_option("--seconds", arguments->seconds, "Measured time of a run")
      ->type_name("SECONDS")
      ->capture_default_str();
  command
      ->add_option("--warm-up", arguments->warm_up,
                   "Time from a run's first step to the measurement")
      ->type_name("SECONDS")
      ->capture_default_str();
  command
      ->add_option("--limit", arguments->limit,
                   "Longest time of a run. A run without a measured step then counts as failed")
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_flag("--dry-run", arguments->dry_run, "Print the candidates and run nothing");
  command
      ->add_option("--topology", arguments->topology,
                   "With --dry-run: a host to print the candidates for, as 2x16 for 2 NUMA nodes "
                   "of 16 cores each (default: this host)")
      ->type_name("NODESxCORES");
  command->add_flag("--json", arguments->json, "Print one JSON object instead of a table");
  command->prefix_command();
  command->validate_positionals();
  command
      ->add_option("PROGRAM", arguments->placeholder,
                   "Program to run, and its own arguments (required)")
      ->check([](const std::string&) { return std::string("left to the program"); }, "", "");
  command->callback(
      [arguments, command, &exit_code] { exit_code = tune_main(*arguments, *command); });
}

}  // namespace lockstep::cli
