#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "lockstep/data_parallel_options.h"
#include "lockstep/group.h"
#include "parallel/reducer/reducer.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0_2::detail {

/// Updates the parameters: all of them on every rank, by the optimizer's own step. A derived class
/// owns what its update needs beside the optimizer: where parameters and state are, and which
/// elements this rank updates.
class Update {
 public:
  /// Throws: InvalidArgument unless the optimizer supports options.share_memory and options.shard,
  /// and has the parameters that they need.
  static void check(const torch::optim::Optimizer& optimizer, const ModelView& model,
                    const DataParallelOptions& options);
  /// The update of these options: of every parameter on every rank, shared or sharded.
  /// check() must accept the optimizer. Reducer and optimizer must outlive it.
  /// Ranks: all of the group.
  /// Throws: InvalidArgument and CheckpointError, on every rank. CommError when memory is short.
  static std::unique_ptr<Update> create(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                        const Group& group, const DataParallelOptions& options);

  Update(torch::optim::Optimizer& optimizer, Reducer& reducer)
      : optimizer_(optimizer), reducer_(reducer) {}
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;
  virtual ~Update() = default;

  /// The result of exchanges that step() needs in backward_and_update(), where nothing else reads
  /// gradients. With none, step() averages the ranks' own gradients.
  virtual Product product() const { return Product::mean; }

  /// The optimizer's step. Ranks: all.
  virtual void step();
  /// The step of an optimizer that evaluates the loss. evaluate() computes and averages the
  /// gradients, and returns the mean loss. Returns what the optimizer returns. Ranks: all.
  virtual at::Tensor step(const std::function<at::Tensor()>& evaluate);

 protected:
  torch::optim::Optimizer& optimizer_;
  Reducer& reducer_;
};

/// The update of DataParallelOptions::share_memory; parameters, ranks and exceptions as of
/// Update::create(). The parameters of all ranks must be equal.
std::unique_ptr<Update> shared_update(torch::optim::Optimizer& optimizer, Reducer& reducer,
                                      const Group& group);

}  // namespace lockstep::detail
