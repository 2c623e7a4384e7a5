#include "lockstep/parallel/replica.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/parallel/agree.h"
#include "lockstep/parallel/reducer.h"

namespace lockstep {

NoSync::NoSync(std::shared_ptr<detail::Reducer> reducer) : reducer_(std::move(reducer)) {
  reducer_->pause();
}

NoSync::~NoSync() {
  if (reducer_) reducer_->resume();
}

namespace detail {
namespace {

constexpr const char* where = "DistributedDataParallel";

void check_strategy(const Strategy& strategy) {
  if (strategy.exchanges_every_gradient()) return;
  throw InvalidArgument(concat("strategy ", strategy.text(),
                               " does not average every gradient at every step: use "
                               "DistributedOptimizer, which also exchanges parameters"));
}

/// What ranks must have in common. A rank that cannot go on says why there, so that all of them
/// learn of it and none waits for it.
std::vector<std::string> describe_all(const ModelState& model, const Group& group,
                                      const DataParallelOptions& options) {
  try {
    check_strategy(options.strategy);
    Reducer::check(model, group);
  } catch (const InvalidArgument& error) {
    return {concat("an error: ", error.what())};
  }
  const bool same_seed = options.initial_sync == InitialSync::same_seed;
  auto lines = describe(model, same_seed);
  lines.push_back(concat("options strategy ", options.strategy.text(), ", buckets of ",
                         options.buckets.first, " and ", options.buckets.rest, " bytes, ",
                         same_seed ? "same_seed" : "broadcast", ", buffers ",
                         options.buffer_policy == BufferPolicy::none ? "none" : "from_rank0"));
  return lines;
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, const Group& group,
                 const DataParallelOptions& options)
    : module_(std::move(module)) {
  if (module_ == nullptr) throw InvalidArgument(concat(where, ": got no model"));
  const ModelState model(*module_);
  agree(group, where, describe_all(model, group, options));
  try {
    check_strategy(options.strategy);
    reducer_ = Reducer::create(model, group, options);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        concat(where, " rank ", group.rank(), " of ", group.size(), ": ", error.what()));
  }
  if (options.initial_sync == InitialSync::broadcast) broadcast(model, group, 0);
  for (const auto& named : model.parameters) {
    known_.push_back({.named = named,
                      .dtype = named.tensor.scalar_type(),
                      .trainable = named.tensor.requires_grad()});
  }
}

void Replica::check_unchanged() const {
  const auto fail = [](const auto&... what) {
    throw InvalidArgument(concat(where, ": ", what...,
                                 " since the model was wrapped: wrap it again after changing it"));
  };
  auto known = known_.begin();
  for (const auto& parameter : module_->parameters()) {
    // A tensor that is listed again under a second name.
    const auto same = [&](const Known& other) { return other.named.tensor.is_same(parameter); };
    if (known == known_.end() || !same(*known)) {
      if (std::any_of(known_.begin(), known, same)) continue;
      fail("the list of parameters has changed at #", known - known_.begin());
    }
    if (parameter.scalar_type() != known->dtype) {
      fail("parameter ", known->named.name, " has become ", toString(parameter.scalar_type()));
    }
    if (parameter.requires_grad() && !known->trainable) {
      fail("parameter ", known->named.name, " was frozen, and has come to require a gradient");
    }
    ++known;
  }
  if (known != known_.end()) fail("parameter ", known->named.name, " has gone");
}

void Replica::watch(const at::Tensor& output) const { reducer_->watch(output); }

}  // namespace detail

}  // namespace lockstep
