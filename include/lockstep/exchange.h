#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/exchange_task.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

/// Parameters whose gradients are exchanged together. A flat tensor in the group's memory has a
/// slice for each parameter.
class Bucket {
 public:
  /// One parameter's part of the flat tensor.
  struct Slice {
    std::string name;      ///< of the parameter in the module
    at::Tensor parameter;  ///< the parameter itself
    std::size_t offset;    ///< first element within the flat tensor
    /// The slice as a tensor of the parameter's sizes. It has the parameter's strides if these are
    /// dense, else it is row major. It shares the flat tensor's memory, but has a storage of its
    /// own and is not a view for autograd.
    at::Tensor values = {};
  };

  /// A bucket of numel elements, all zero. Every slice must lie within it; the constructor sets the
  /// slices' values.
  /// Throws: CommError if memory is short.
  Bucket(std::size_t index, std::size_t numel, at::ScalarType dtype, std::vector<Slice> slices,
         const Group& group);

  /// The same in memory of the caller, which may lend it to several buckets in turn.
  /// Shapes: values is flat, with at least the elements of all slices and the padding between them.
  Bucket(std::size_t index, at::Tensor values, std::vector<Slice> slices, const Group& group);

  /// Moves the bucket to other memory of this kind. Values are not copied.
  void move_to(at::Tensor values);

  /// Moves all other tensors over a slice's memory, such as a gradient that the program keeps, to
  /// memory of their own with the same values. The slice gets a new tensor over the bucket's
  /// memory. Does nothing if there are none.
  void unshare(std::size_t slice);

  /// Index of this bucket in the plan, which is the same on all ranks. Buckets may be exchanged in
  /// another order.
  std::size_t index() const { return index_; }
  /// All slices and the zeros between them.
  /// Shapes: [numel].
  const at::Tensor& values() const { return values_; }
  std::span<const Slice> slices() const { return slices_; }
  /// The group whose ranks exchange this bucket and in whose memory it lies.
  const Group& group() const { return group_; }

 private:
  Group group_;
  std::size_t index_;
  at::Tensor values_;
  std::vector<Slice> slices_;
};

namespace detail {
/// A tensor of the parameter's sizes over flat's memory, from element `offset` on. It has the
/// parameter's strides if these are dense, else it is row major. It is made from the storage,
/// because an autograd view can be neither a parameter nor a gradient: zero_grad() detaches in
/// place.
at::Tensor alias(const at::Tensor& flat, std::size_t offset, const at::Tensor& parameter);
}  // namespace detail

/// The values of a bucket that a strategy synchronises at a step.
enum class SyncTarget { none, gradients, parameters };

/// State of an exchange between steps, by parameter names. A tensor whose name ends in ".residual"
/// has the values that this rank has not sent yet. Resuming with another number of ranks keeps the
/// sum of these residuals over the ranks. All other values must be the same on every rank.
using State = std::map<std::string, at::Tensor>;

namespace detail {
/// Whether the tensor with this name in a State is a residual.
inline bool is_residual(std::string_view name) { return name.ends_with(".residual"); }
}  // namespace detail

/// The exchange of one bucket, with the state that it keeps between steps.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The exchange of a step, as a coroutine. It begins when the bucket is ready. When it ends,
  /// bucket.values() has the result on every rank. step is the number of earlier exchanges; with a
  /// DistributedOptimizer, the number of its earlier steps. Bucket and group outlive the coroutine.
  /// Issue all collectives in `group`, which is not the world on several hosts with several ranks
  /// each.
  /// Ranks: all. All ranks must issue the same collectives, and throw on all ranks or on none.
  virtual ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) = 0;

  /// Whether the strategy has exchange_part(), which Shard::gradients requires. Shard::optimizer
  /// uses it in DistributedOptimizer::backward_and_update().
  virtual bool has_parts() const { return false; }

  /// exchange() for ranks that need a part of the result each. When it ends, part has this rank's
  /// part, with the values that exchange() gives, and bucket.values() is unspecified. The parts of
  /// all ranks, in rank order, make up bucket.values(). part may be this rank's place in the
  /// bucket: write it after the bucket was read. Shapes: part has bucket.values().numel() ÷
  /// group.size() elements, rounded up to whole cache lines. So the last parts may extend beyond
  /// the bucket. Ranks: all of the group.
  virtual ExchangeTask exchange_part(std::int64_t /*step*/, Bucket& /*bucket*/,
                                     const at::Tensor& /*part*/, const Group& /*group*/) {
    return {};
  }

  /// Called before the optimizer updates the parameters of this bucket, if the strategy exchanges
  /// parameters in the same step. Not called if it exchanges gradients.
  virtual void before_update(std::int64_t /*step*/, const Bucket&) {}

  /// Whether exchange() issues exactly one all_reduce. It matters on several hosts with several
  /// ranks each: a single all_reduce uses all ranks of each host. Any other exchange runs between
  /// hosts. Its group then has one rank of every host, and its bucket has some of the parameters.
  /// The gradients in it are the sum over the host's ranks times hosts ÷ ranks, the parameters the
  /// mean over the host's ranks. See docs/design/gradients.md, "Strategies between hosts".
  virtual bool is_all_reduce() const { return false; }

  /// The state between steps. Called before the first exchange or between steps. The returned
  /// residuals share memory with the exchange, so the caller can add to them in place.
  virtual State state() const { return {}; }
  /// Loads a state that state() of the same strategy returned, such as one from a checkpoint.
  /// Called before the first exchange or between steps. Unknown names are ignored.
  virtual void load(const State&) {}
};

}  // namespace lockstep
