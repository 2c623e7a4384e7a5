#include <algorithm>
#include <string_view>

#include "core/environment.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "launch/plan.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::plural;
using detail::Row;
using detail::table;

std::vector<Row> configuration(const Plan& plan) {
  const auto& options = plan.options;
  const auto& topology = plan.topology;
  const bool bound = !plan.ranks.front().cpus.empty();
  std::vector<std::string> command{plan.program.string()};
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  std::vector<Row> rows{
      {"command", detail::joined(command, " ", detail::quoted)},
      {"ranks", std::to_string(options.ranks)},
      {"cores", concat(plural(topology.cores.size(), "core"), ", ",
                       plural(topology.cpus().size(), "logical CPU"), ", ",
                       plural(topology.nodes().size(), "NUMA node"))},
      {"threads", concat(plan.threads, " a rank")},
      {"binding", bound                        ? "each rank to its own cores"
                  : options.bind == Bind::none ? "none"
                                               : "none: more ranks than logical CPUs"}};
  if (const auto& node = options.node; node.count > 1) {
    rows.push_back(
        {"node",
         concat(node.number, " of ", node.count, ", node 0 listens at ", node.host, " port ",
                node.port, node.source.empty() ? "" : concat(" (", node.source, ")"),
                "; LOCKSTEP_RANK begins at 0 on node 0, and counts on from node to node")});
  }
  if (const auto& gpus = plan.gpus; !gpus.gpus.empty()) {
    rows.push_back(
        {"GPUs", concat(labels(gpus.gpus), gpus.shared ? ", shared by the ranks" : ", one a rank",
                        gpus.note.empty() ? "" : "; ", gpus.note)});
  }
  return rows;
}

}  // namespace

std::string describe(const Plan& plan) {
  const auto& first = plan.ranks.front().variables;
  std::vector<Row> common;
  for (const auto& [name, value] : first) {
    if (name != "LOCKSTEP_RANK") common.push_back({name, value});
  }
  const auto& gpus = plan.gpus.gpus;
  const bool with_gpus = !gpus.empty();
  for (const auto& [name, value] : plan.inherited) {
    // Settings of the user that replace a default of Lockstep.
    const bool of_lockstep = name.starts_with("LOCKSTEP_") && !detail::is_secret(name);
    const bool settled = name == "OMP_NUM_THREADS" || name.starts_with("MALLOC_") ||
                         name == "GLIBC_TUNABLES" || (of_lockstep && !value.empty()) ||
                         (with_gpus && name == "CUDA_VISIBLE_DEVICES");
    if (settled && find_variable(first, name) == nullptr)
      common.push_back({name, value, "(yours)"});
  }

  std::vector<Row> ranks{{"rank", "cpus"}};
  if (with_gpus) ranks.front().push_back("GPU");
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const auto& cpus = plan.ranks[rank].cpus;
    Row row{std::to_string(rank), cpus.empty() ? "any" : format_cpu_list(cpus)};
    if (with_gpus) row.push_back(labels({&gpus[rank % gpus.size()], 1}));
    ranks.push_back(std::move(row));
  }

  return concat(table("Configuration", configuration(plan)), '\n',
                table("Environment of every rank", common), '\n',
                table("Places of the ranks", ranks));
}

}  // namespace lockstep::launch
