#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/statistics.h"
#include "lockstep/types.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

class Communicator;

/// The shared handle to a group of ranks: a small value, copied freely. The group lives as long as
/// its handles and the tensors in its memory. Every collective is issued by all ranks of the group
/// in the same order, and returns a Work. Tensors must be dense, contiguous, on this group's
/// device, and of a dtype that Lockstep carries; of zero elements is fine. Throws: InvalidArgument
/// for any other tensor, without consuming a sequence number.
class Group {
 public:
  explicit Group(std::shared_ptr<Communicator> communicator);

  int rank() const;
  int size() const;
  int local_rank() const;  ///< rank among those of this host
  int local_size() const;  ///< ranks on this host
  int node() const;        ///< number of this host, in the order of the hosts' first ranks
  int nodes() const;       ///< hosts that ranks are on
  at::Device device() const { return at::kCPU; }

  /// tensor = reduction over ranks, in place. Shapes: the same on every rank.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  /// The same sum or avg of a float32 tensor whose elements are sent in reduced precision.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Wire& wire) const;
  /// tensor = root's tensor.
  Work broadcast(const at::Tensor& tensor, int root = 0) const;
  /// output = all ranks' inputs, joined in rank order along the first dimension.
  Work all_gather(const at::Tensor& output, const at::Tensor& input) const;
  /// The same with inputs of counts[r] elements. Shapes: output holds the sum of counts.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<std::size_t>& counts) const;
  /// output = this rank's part of the reduction of input. Shapes: input size() times output.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::sum) const;
  /// The same with counts[r] elements for rank r. Shapes: input holds the sum of counts.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<std::size_t>& counts, ReduceOp op = ReduceOp::sum) const;
  /// root's output = all inputs in rank order; output may be undefined elsewhere.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0) const;
  /// output = this rank's part of root's input; input may be undefined elsewhere.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0) const;
  /// output part r = rank r's input part for this rank. Shapes: both hold size() parts of one
  /// length.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input) const;
  /// Messages between two ranks match in order, and must agree on elements, dtype and tag.
  Work send(const at::Tensor& tensor, int dst, std::uint32_t tag = 0) const;
  Work recv(const at::Tensor& tensor, int src, std::uint32_t tag = 0) const;
  Work barrier() const;

  /// A tensor in memory that the group exchanges without copying. Local, not collective.
  /// Uninitialised.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const;

  /// Runs fn on rank 0, then on rank 1, … Collective. For what thread ranks share, as LibTorch's
  /// random generator. An exception of fn reaches its own rank, and ends the world for the others.
  void in_turn(const std::function<void()>& fn) const;

  /// Ranks of equal color form a group, ordered by (key, rank). Collective. Throws: InvalidArgument
  /// if color is negative.
  Group split(int color, int key = 0) const;

  /// The ranks of this host. Collective.
  Group local() const { return split(node()); }
  /// The ranks that have this local rank, one of each host that has so many. Collective.
  Group across_nodes() const { return split(local_rank()); }

  /// Costs of this group's collectives on this rank so far, bucket by bucket; to_text() makes a
  /// table of them.
  Statistics statistics() const;

  /// The byte layer below, which is not part of the public API.
  Communicator& communicator() const { return *communicator_; }

 private:
  std::shared_ptr<Communicator> communicator_;
};

/// Runs fn on every rank and fails on all ranks if it failed on one, so that no rank goes on alone.
/// A rank where fn failed raises its own error. The others raise an error that names the first such
/// rank: InvalidArgument, CheckpointError or DataError where that rank raised it, else Error. For
/// work that can fail on one rank only, such as reading files; the group
/// stays usable.
/// Ranks: all. fn itself must not communicate, and throws nothing but what derives from
/// std::exception.
void all_or_none(const Group& group, const std::function<void()>& fn);

}  // namespace lockstep
