#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/operation.h"
#include "lockstep/data_parallel_options.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "lockstep/model_view.h"

namespace lockstep::inline v0_2::detail {

/// A model's tensors in order of registration. A tensor with several names is listed once, under
/// the first.
struct ModelState {
  explicit ModelState(const ModelView& model);

  /// Declares parameters whose gradients are sparse, beside those of Embedding and EmbeddingBag
  /// with sparse = true.
  /// Throws: InvalidArgument for a name that is not a parameter's.
  void declare_sparse(const std::vector<std::string>& names);
  bool has_sparse_gradient(const at::Tensor& parameter) const {
    return sparse.contains(parameter.unsafeGetTensorImpl());
  }

  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  std::unordered_set<const void*> sparse;  ///< parameters with sparse gradients
};

/// One line per tensor, for a comparison between ranks. with_values adds a checksum.
std::vector<std::string> describe(const ModelState& state, bool with_values);

/// broadcast_parameters() without the comparison of models.
void broadcast(const ModelState& state, const Group& group, int root);

/// The option that divides or shares the optimizer's update; null if none does. It moves the
/// parameters to other memory, and requires a DistributedOptimizer.
const char* update_option(const DataParallelOptions& options);

class ForwardGraph;
class Reducer;

/// A model that all ranks hold. Both front ends use it. It compares the ranks' models, makes them
/// equal at the start, and has the Reducer that exchanges gradients.
class ReplicatedModel {
 public:
  /// Ranks: all of the group.
  /// Throws: InvalidArgument, on every rank; the group stays usable. Any other error, such as a
  /// shortage of memory on one rank, ends the world.
  ReplicatedModel(ModelView model, const Group& group, const DataParallelOptions& options,
                  Source::Owner front_end);

  /// Throws: InvalidArgument when the model's parameters are not those it was wrapped with.
  void check_unchanged() const;
  /// Call before a forward that a backward may follow. The graph is for watch().
  /// Throws: InvalidArgument when check_unchanged() or Reducer::check_optimizer() does.
  std::shared_ptr<ForwardGraph> begin_forward() const;
  /// Throws: InvalidArgument if an option moves the parameters, and one shares its memory with
  /// another tensor.
  void check_movable() const;
  void watch(const at::Tensor& output, const std::shared_ptr<ForwardGraph>& graph) const;
  /// Throws: InvalidArgument with the types that a forward may return.
  [[noreturn]] void refuse_output(const std::type_info& type) const;
  NoSync no_sync() const { return NoSync(reducer_); }
  Reducer& reducer() const { return *reducer_; }
  const ModelView& model() const { return model_; }
  const Group& group() const { return group_; }
  const DataParallelOptions& options() const { return options_; }

 private:
  /// A parameter as it was when the model was wrapped.
  struct Wrapped {
    NamedTensor named;
    at::ScalarType dtype;
    bool trainable;
  };

  ModelView model_;
  Group group_;
  DataParallelOptions options_;
  const char* operation_;  ///< name of the front end
  Source source_;          ///< of this wrapper's collectives
  std::vector<Wrapped> wrapped_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep::detail
