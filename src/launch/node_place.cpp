#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "comm/control/address.h"
#include "comm/control/joining.h"
#include "core/environment.h"
#include "core/launcher.h"
#include "core/text.h"
#include "launch/plan.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::parse_number;

/// The variables in which another launcher describes the nodes; "" for those that it does not have.
struct NodeSource {
  const char* count;
  const char* number;
  const char* address;
  const char* port;
};

// A launcher inside another one comes first. PyTorchJob's WORLD_SIZE and RANK count pods. In a
// batch script of SLURM, one launcher runs on the first node only, which therefore has no number.
constexpr std::array node_sources{
    NodeSource{"PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"},
    NodeSource{"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"},
    NodeSource{"SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", "MASTER_PORT"},
    NodeSource{"SLURM_NNODES", "", "SLURM_JOB_NODELIST", "MASTER_PORT"},
    NodeSource{"", "JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT"},
};
const auto default_port = std::to_string(control::default_port);

std::string shown(const Variables& environment, const NodeSource& source) {
  std::string text;
  for (const std::string_view name : {source.count, source.number, source.address, source.port}) {
    if (name.empty()) continue;
    const auto set = value_of(environment, name);
    text += concat(text.empty() ? "" : ", ", name, set.empty() ? " unset" : concat("=", set));
  }
  return text;
}

/// The source to use: the first that describes several nodes; with --nnodes, the first that has a
/// number and does not contradict.
const NodeSource* find_source(const NodeOptions& options, const Variables& environment) {
  const auto found = std::ranges::find_if(node_sources, [&](const NodeSource& source) {
    const auto count = value_of(environment, source.count);
    if (!options.count) return !count.empty() && count != "1";
    return !value_of(environment, source.number).empty() &&
           (count.empty() || count == std::to_string(*options.count));
  });
  return found == node_sources.end() ? nullptr : &*found;
}

/// Whether this may be a host's name, or is an address.
bool is_host(const std::string& text) {
  in6_addr address;
  return !text.empty() && (text.find(':') == text.npos || text.find('%') != text.npos ||
                           ::inet_pton(AF_INET6, text.c_str(), &address) == 1);
}

}  // namespace

NodePlace find_place(const NodeOptions& options, const Variables& environment) {
  const bool several = options.count && *options.count != 1;
  if (options.standalone && several) {
    throw InvalidArgument(
        concat("run: got --standalone and --nnodes ", *options.count, ", expected one of them"));
  }
  if (options.standalone || (options.count && !several)) return {};
  const auto* source = find_source(options, environment);
  if (!several && source == nullptr) {
    if (!options.number && options.master.empty()) return {};
    throw InvalidArgument(
        "run: got --node-rank or --master without --nnodes, expected the number of nodes: add "
        "--nnodes N");
  }
  NodePlace place{.token = value_of(environment, "LOCKSTEP_NODE_TOKEN")};
  std::string port = default_port;
  if (source != nullptr) {
    place.count = parse_number<int>(value_of(environment, source->count)).value_or(0);
    place.number = parse_number<int>(value_of(environment, source->number)).value_or(-1);
    place.host = first_host(value_of(environment, source->address));
    place.source = shown(environment, *source);
    if (const auto given = value_of(environment, source->port); !given.empty()) port = given;
  }
  if (several) place.count = *options.count;
  if (options.number || source == nullptr) place.number = options.number.value_or(-1);
  if (!options.master.empty()) {
    auto [host, given] = control::divide_address(options.master);
    place.host = std::move(host);
    port = given.value_or(default_port);
  }
  place.port = parse_number<std::uint16_t>(port).value_or(0);
  if (place.count >= 2 && place.number >= 0 && place.number < place.count && is_host(place.host) &&
      place.port != 0) {
    return place;
  }
  throw InvalidArgument(concat(
      "run: cannot join a job of several nodes: got ",
      several ? concat("--nnodes ", place.count) : "",
      options.number ? concat(" --node-rank ", *options.number) : "",
      options.master.empty() ? "" : concat(" --master ", options.master),
      several && source != nullptr ? " and " : "", place.source,
      "; expected 2 or more nodes, a node rank below their number, and the host and port of node "
      "0. Pass --nnodes N --node-rank K --master HOST:PORT, with [ADDRESS]:PORT for IPv6, or "
      "--standalone for a world of this host"));
}

std::string ranks_of_environment(const Variables& environment) {
  const auto ranks = value_of(environment, "PET_NPROC_PER_NODE");
  if (ranks == "gpu") return "gpus";
  return parse_number<int>(ranks) ? ranks : "";
}

}  // namespace lockstep::launch
