#include <algorithm>
#include <array>
#include <string_view>

#include "comm/host/world/world.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "tune/tuning.h"

namespace lockstep::inline v0_2::tune {
namespace {

using detail::concat;
using launch::Variables;

constexpr std::string_view batch_word = "{batch}";
/// The variables that are not inherited. Runs are counted by their flight records.
constexpr std::array<std::string_view, 4> varied = {
    "OMP_NUM_THREADS", "LOCKSTEP_BUCKET_MIB", "LOCKSTEP_SHARE_MEMORY", "LOCKSTEP_FLIGHT_RECORDER"};

std::vector<std::string> arguments_of(const Program& program, int ranks) {
  auto arguments = program.arguments;
  if (!program.global_batch) return arguments;
  const auto batch = std::to_string(*program.global_batch / ranks);
  for (auto& argument : arguments) {
    for (auto at = argument.find(batch_word); at != std::string::npos;
         at = argument.find(batch_word, at + batch.size())) {
      argument.replace(at, batch_word.size(), batch);
    }
  }
  return arguments;
}

/// Threads of a rank under `lockstep run`, without OMP_NUM_THREADS.
int usual_threads(const Candidate& candidate, const Topology& topology) {
  return launch::divide_cores(topology, candidate.ranks, candidate.bind).threads;
}

/// The variables that make the candidate, in addition to those of `lockstep run`.
Variables variables_of(const Candidate& candidate, const Topology& topology) {
  Variables variables;
  if (candidate.threads != usual_threads(candidate, topology)) {
    variables.emplace_back("OMP_NUM_THREADS", std::to_string(candidate.threads));
  }
  if (candidate.bucket != default_bucket) {
    variables.emplace_back("LOCKSTEP_BUCKET_MIB", std::to_string(candidate.bucket));
  }
  if (candidate.share_memory) variables.emplace_back("LOCKSTEP_SHARE_MEMORY", "1");
  return variables;
}

void add_unless_known(std::vector<Candidate>& all, const Candidate& candidate) {
  if (std::ranges::find(all, candidate) == all.end()) all.push_back(candidate);
}

/// The numbers of ranks that divide the cores and keep each rank's cores on one NUMA node, or give
/// it whole nodes.
std::vector<int> usual_ranks(int cores, int nodes) {
  std::vector<int> numbers;
  for (int ranks = 1; ranks <= std::min(cores, host::max_ranks); ++ranks) {
    const bool whole = ranks < nodes ? nodes % ranks == 0 : ranks % nodes == 0;
    if (cores % ranks == 0 && whole) numbers.push_back(ranks);
  }
  return numbers;
}

}  // namespace

int Candidate::changes() const {
  return static_cast<int>(bind != launch::Bind::cores) +
         static_cast<int>(bucket != default_bucket) + static_cast<int>(share_memory);
}

std::vector<Candidate> layouts(const Topology& topology, const Program& program,
                               const Search& search) {
  const bool divides = std::ranges::any_of(program.arguments, [](const auto& argument) {
    return argument.find(batch_word) != std::string::npos;
  });
  if (divides && !program.global_batch) {
    throw InvalidArgument(
        "tune: got {batch} in the program's arguments without --global-batch, expected both or "
        "none");
  }
  const auto cores = static_cast<int>(topology.cores.size());
  const int most = std::min(host::max_ranks, static_cast<int>(topology.cpus().size()));
  const auto nodes = static_cast<int>(topology.nodes().size());
  std::vector<Candidate> all;
  for (const int ranks : search.ranks.empty() ? usual_ranks(cores, nodes) : search.ranks) {
    if (ranks < 1 || ranks > most) {
      throw InvalidArgument(concat("tune: --ranks: got ", ranks, ", expected 1 to ", most,
                                   " on this host, whose logical CPUs are as many"));
    }
    if (program.global_batch && *program.global_batch % ranks != 0) continue;
    Candidate candidate{.ranks = ranks};
    candidate.threads = usual_threads(candidate, topology);
    add_unless_known(all, candidate);
    for (const int part : {2, 4}) {
      if (ranks > 1 || cores < part) break;
      candidate.threads = cores / part;
      add_unless_known(all, candidate);
    }
  }
  if (all.empty()) {
    throw InvalidArgument(concat("tune: --global-batch: got ", *program.global_batch,
                                 ", expected a multiple of a number of ranks in --ranks"));
  }
  return all;
}

std::vector<Candidate> variants(const Candidate& layout, const Search& search) {
  std::vector<Candidate> all;
  if (layout.ranks == 1) return all;
  auto add = [&](auto&& change) {
    auto variant = layout;
    change(variant);
    if (!(variant == layout)) add_unless_known(all, variant);
  };
  add([](Candidate& one) { one.bind = launch::Bind::none; });
  for (const int bucket : search.buckets) add([&](Candidate& one) { one.bucket = bucket; });
  add([](Candidate& one) { one.share_memory = true; });
  return all;
}

launch::Plan plan_of(const Candidate& candidate, const Program& program, const Topology& topology,
                     Variables inherited) {
  std::erase_if(inherited, [](const auto& variable) {
    return std::ranges::find(varied, variable.first) != varied.end();
  });
  for (auto& variable : variables_of(candidate, topology)) inherited.push_back(std::move(variable));
  launch::Options options;
  options.ranks = candidate.ranks;
  options.program = program.name;
  options.arguments = arguments_of(program, candidate.ranks);
  options.bind = candidate.bind;
  options.quiet = true;
  return launch::make_plan(options, topology, inherited);
}

std::string command_of(const Candidate& candidate, const Program& program, const Topology& topology,
                       const Variables& inherited) {
  const auto variables = variables_of(candidate, topology);
  std::string command;
  for (const auto name : varied) {
    if (launch::find_variable(variables, name) != nullptr) continue;
    if (launch::find_variable(inherited, name) != nullptr) command += concat("-u ", name, ' ');
  }
  if (!command.empty()) command = "env " + command;
  for (const auto& [name, value] : variables) {
    command += concat(name, '=', value, ' ');
  }
  command += concat("lockstep run -n ", candidate.ranks);
  if (candidate.bind == launch::Bind::none) command += " --bind none";
  command += ' ' + detail::quoted(program.name);
  for (const auto& argument : arguments_of(program, candidate.ranks)) {
    command += ' ' + detail::quoted(argument);
  }
  return command;
}

}  // namespace lockstep::tune
