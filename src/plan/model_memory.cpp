#include "plan/model_memory.h"

#include <algorithm>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::plan {
namespace {

using detail::concat;

struct NamedOptimizer {
  std::string_view name;
  int tensors;
};

constexpr NamedOptimizer optimizers[] = {{"sgd", 0},     {"momentum", 1}, {"rmsprop", 1},
                                         {"adagrad", 1}, {"adam", 2},     {"adamw", 2},
                                         {"amsgrad", 3}};

}  // namespace

std::string_view name(Shard shard) {
  switch (shard) {
    case Shard::none:
      return "none";
    case Shard::optimizer:
      return "optimizer";
    case Shard::gradients:
      return "gradients";
  }
  return "unknown";
}

Shard parse_shard(std::string_view text) {
  for (const auto one : {Shard::none, Shard::optimizer, Shard::gradients}) {
    if (text == name(one)) return one;
  }
  throw InvalidArgument(
      concat("plan: --shard: got '", text, "', expected none, optimizer or gradients"));
}

int state_tensors(std::string_view optimizer) {
  std::string names;
  for (const auto& one : optimizers) {
    if (optimizer == one.name) return one.tensors;
    names += concat(names.empty() ? "" : ", ", one.name);
  }
  throw InvalidArgument(
      concat("plan: --optimizer: got '", optimizer, "', expected one of ", names));
}

ModelMemory bytes_per_parameter(const Keeping& keeping) {
  const double ranks = static_cast<double>(keeping.nodes) * keeping.ranks_per_node;
  const double state = element_bytes * keeping.state_tensors;
  if (keeping.share_memory) {
    if (keeping.shard != Shard::none) {
      throw InvalidArgument(concat("plan: --share-memory: got --shard ", name(keeping.shard),
                                   ", expected one of the two: shared state is one copy already"));
    }
    // .grad() is in the bucket or, where the ranks of one host read each other's buckets, beside
    // it.
    const double copies = keeping.nodes == 1 && ranks > 1 ? 2 : 1;
    return {.gradients = element_bytes * copies, .shared = element_bytes + state};
  }
  ModelMemory memory{.parameters = element_bytes, .gradients = element_bytes, .state = state};
  if (keeping.shard != Shard::none) memory.state /= ranks;
  if (keeping.shard == Shard::gradients) memory.gradients /= ranks;
  return memory;
}

double largest_model(const Keeping& keeping, double host_bytes, double other_bytes) {
  const double free = host_bytes - keeping.ranks_per_node * other_bytes;
  return std::max(0.0, free / bytes_per_parameter(keeping).of_host(keeping.ranks_per_node));
}

}  // namespace lockstep::plan
