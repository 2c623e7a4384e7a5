#include "tune/candidates.h"

#include <algorithm>
#include <string_view>

#include "comm/host/world.h"
#include "core/text.h"
#include "launch/describe.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::tune {
namespace {

using detail::concat;
using launch::Variables;

constexpr std::string_view batch_word = "{batch}";
constexpr const char* threads_variable = "OMP_NUM_THREADS";
constexpr const char* bucket_variable = "LOCKSTEP_BUCKET_MIB";
constexpr const char* share_variable = "LOCKSTEP_SHARE_MEMORY";
constexpr const char* recorder_variable = "LOCKSTEP_FLIGHT_RECORDER";

int cores_of(const Topology& topology) { return static_cast<int>(topology.cores.size()); }

bool has_batch_word(const Program& program) {
  return std::ranges::any_of(program.arguments, [](const std::string& argument) {
    return argument.find(batch_word) != std::string::npos;
  });
}

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

bool divides_batch(const Program& program, int ranks) {
  return !program.global_batch || *program.global_batch % ranks == 0;
}

/// The variables that make the candidate, in addition to those of `lockstep run`.
Variables variables_of(const Candidate& candidate, const Topology& topology) {
  Variables variables;
  if (candidate.threads != usual_threads(candidate, topology)) {
    variables.emplace_back(threads_variable, std::to_string(candidate.threads));
  }
  if (candidate.bucket != default_bucket) {
    variables.emplace_back(bucket_variable, std::to_string(candidate.bucket));
  }
  if (candidate.share_memory) variables.emplace_back(share_variable, "1");
  return variables;
}

void add_unless_known(std::vector<Candidate>& all, const Candidate& candidate) {
  if (std::ranges::find(all, candidate) == all.end()) all.push_back(candidate);
}

}  // namespace

int Candidate::changes() const {
  return static_cast<int>(bind != launch::Bind::cores) +
         static_cast<int>(bucket != default_bucket) + static_cast<int>(share_memory);
}

void check(const Program& program) {
  if (program.global_batch && *program.global_batch < 1) {
    throw InvalidArgument(concat("tune: --global-batch: got ", *program.global_batch,
                                 ", expected at least 1 sample"));
  }
  if (!program.global_batch && has_batch_word(program)) {
    throw InvalidArgument(
        "tune: got {batch} in the program's arguments without --global-batch, expected both or "
        "none");
  }
}

std::vector<Candidate> layouts(const Topology& topology, const Program& program,
                               const Space& space) {
  const int cores = cores_of(topology);
  const auto nodes = static_cast<int>(topology.nodes().size());
  const int most = std::min(host::max_ranks, static_cast<int>(topology.cpus().size()));
  auto numbers = space.ranks;
  for (const int ranks : numbers) {
    if (ranks < 1 || ranks > most) {
      throw InvalidArgument(concat("tune: --ranks: got ", ranks, ", expected 1 to ", most,
                                   " on this host, whose logical CPUs are as many"));
    }
  }
  if (numbers.empty()) {
    for (int ranks = 1; ranks <= std::min(cores, host::max_ranks); ++ranks) {
      const bool whole = ranks < nodes ? nodes % ranks == 0 : ranks % nodes == 0;
      if (cores % ranks == 0 && whole) numbers.push_back(ranks);
    }
  }
  std::vector<Candidate> all;
  for (const int ranks : numbers) {
    if (!divides_batch(program, ranks)) continue;
    Candidate candidate{.ranks = ranks};
    candidate.threads = usual_threads(candidate, topology);
    add_unless_known(all, candidate);
    if (ranks > 1) continue;
    for (const int part : {2, 4}) {
      if (cores < part) break;
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

std::vector<Candidate> variants(const Candidate& layout, const Space& space) {
  std::vector<Candidate> all;
  if (layout.ranks == 1) return all;
  auto add = [&](auto&& change) {
    auto variant = layout;
    change(variant);
    if (!(variant == layout)) add_unless_known(all, variant);
  };
  add([](Candidate& one) { one.bind = launch::Bind::none; });
  for (const int bucket : space.buckets) add([&](Candidate& one) { one.bucket = bucket; });
  add([](Candidate& one) { one.share_memory = true; });
  return all;
}

launch::Plan plan_of(const Candidate& candidate, const Program& program, const Topology& topology,
                     Variables inherited) {
  std::erase_if(inherited, [](const auto& variable) {
    return variable.first == threads_variable || variable.first == bucket_variable ||
           variable.first == share_variable || variable.first == recorder_variable;
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

std::string command_of(const Candidate& candidate, const Program& program,
                       const Topology& topology) {
  std::string command;
  for (const auto& [name, value] : variables_of(candidate, topology)) {
    command += concat(name, '=', value, ' ');
  }
  command += concat("lockstep run -n ", candidate.ranks);
  if (candidate.bind == launch::Bind::none) command += " --bind none";
  command += ' ' + launch::quoted(program.name);
  for (const auto& argument : arguments_of(program, candidate.ranks)) {
    command += ' ' + launch::quoted(argument);
  }
  return command;
}

}  // namespace lockstep::tune
