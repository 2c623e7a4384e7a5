#include "lockstep/several_optimizers.h"

#include <torch/optim/optimizer.h>

#include <algorithm>

#include "checkpoint/checkpoint_content.h"
#include "checkpoint/optimizer_state.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/update/sharded_parameters.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;

/// No parameter's state has this name: those have a '/'.
constexpr const char* description_name = "description";

std::string index_prefix(std::size_t index) { return concat(index, '/'); }

}  // namespace

State StatefulOptimizer::state() const {
  if (detail::ShardedParameters::of(optimizer_) != nullptr) {
    throw CheckpointError(
        "StatefulOptimizer: got an optimizer whose state DataParallelOptions::shard divides among "
        "ranks, expected one with a whole state on every rank: make it Checkpoint::optimizer, or "
        "set shard = Shard::none for it");
  }
  const auto own = detail::optimizer_state(optimizer_, model_);
  State state = detail::with_prefix(own.tensors, detail::optimizer_prefix);
  state.emplace(description_name, detail::tensor_of(own.description));
  return state;
}

void StatefulOptimizer::load_state(const State& state) {
  detail::OptimizerState own;
  for (const auto& [name, tensor] : state) {
    if (name == description_name && tensor.scalar_type() == at::kByte)
      own.description = detail::text_in(tensor);
    else
      own.tensors.emplace(concat(detail::optimizer_prefix, name), tensor);
  }
  detail::prepare_optimizer(own, optimizer_, model_).apply(optimizer_);
}

SeveralStateful::SeveralStateful(std::vector<Stateful> objects) : objects_(std::move(objects)) {
  for (const auto& object : objects_) {
    if (!object.replicas_may_differ()) continue;
    detail::throw_invalid(
        "SeveralStateful",
        "got a DistributedOptimizer whose replicas may differ, expected strategies "
        "that average every gradient: a checkpoint keeps a state for each rank of "
        "one optimizer only");
  }
}

int SeveralStateful::ranks() const {
  int ranks = 1;
  for (const auto& object : objects_) ranks = std::max(ranks, object.ranks());
  return ranks;
}

State SeveralStateful::state() const {
  State all;
  for (std::size_t i = 0; i < objects_.size(); ++i) {
    for (const auto& [name, tensor] : objects_[i].state()) {
      all.emplace(index_prefix(i) + name, tensor);
    }
  }
  return all;
}

void SeveralStateful::load_state(const State& state) const {
  const State before = detail::copy_of(this->state());
  std::size_t begun = 0;
  const auto load = [&](std::size_t i, const State& all) {
    objects_[i].load_state(detail::with_prefix(all, index_prefix(i)));
  };
  try {
    while (begun < objects_.size()) load(begun++, state);
  } catch (...) {
    for (std::size_t i = 0; i < begun; ++i) load(i, before);
    throw;
  }
}

}  // namespace lockstep
