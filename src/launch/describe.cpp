#include <algorithm>
#include <string_view>

#include "core/environment.h"
#include "core/system/denormals_guard.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "launch/plan.h"
#include "lockstep/denormals.h"

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
                                               : "none: more ranks than logical CPUs"},
      {"memory", options.keep_freed_memory ? "freed pages are kept (glibc)"
                                           : "freed blocks of 1 MiB are returned (glibc)"},
      {"heap", options.huge_pages ? "huge pages, where the kernel allows them (glibc)"
                                  : "pages as glibc and the kernel decide"},
      {"denormals", options.flush_denormals
                        ? std::string(detail::denormals_text(*options.flush_denormals))
                        : "as LOCKSTEP_FLUSH_DENORMALS, or flushed"},
      {"timeout",
       options.timeout ? concat(*options.timeout, " s") : "as LOCKSTEP_TIMEOUT, or 600 s"},
      {"grace", concat(static_cast<double>(options.grace.count()) / 1000, " s")},
      {"restart", options.max_restarts == 0
                      ? "never"
                      : concat("after a failure, up to ", plural(options.max_restarts, "time"),
                               ", the first after ",
                               static_cast<double>(options.restart_delay.count()) / 1000, " s")},
      {"linger", options.linger ? concat(options.linger->count(), " s") : "no limit"},
      {"output", options.quiet ? "rank 0 only" : "rank 0 as it is, others prefixed by [rank]"},
      {"logs", options.log_directory.empty() ? "none" : options.log_directory.string()}};
  if (const auto& node = options.node; node.count > 1) {
    rows.push_back(
        {"node",
         concat(node.number, " of ", node.count, ", node 0 listens at ", node.host, " port ",
                node.port, node.source.empty() ? "" : concat(" (", node.source, ")"),
                "; LOCKSTEP_RANK begins at 0 on node 0, and counts on from node to node")});
    rows.push_back({"transport",
                    "shared memory inside a node, TCP or UCX (LOCKSTEP_TRANSPORT) between nodes"});
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
  std::vector<std::size_t> own;  // indices of variables that differ between ranks
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto is_same = [&](const RankPlan& rank) { return rank.variables[i] == first[i]; };
    if (first[i].first != "LOCKSTEP_RANK" && std::ranges::all_of(plan.ranks, is_same)) {
      common.push_back({first[i].first, first[i].second});
    } else {
      own.push_back(i);
    }
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
  for (const auto i : own) ranks.front().push_back(first[i].first);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const auto& cpus = plan.ranks[rank].cpus;
    Row row{std::to_string(rank), cpus.empty() ? "any" : format_cpu_list(cpus)};
    if (with_gpus) row.push_back(labels({&gpus[rank % gpus.size()], 1}));
    for (const auto i : own) row.push_back(plan.ranks[rank].variables[i].second);
    ranks.push_back(std::move(row));
  }

  return concat(table("Configuration", configuration(plan)), '\n',
                table("Environment of every rank", common), '\n',
                table("Environment of each rank", ranks));
}

}  // namespace lockstep::launch
