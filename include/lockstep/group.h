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

/// A handle to a group of ranks, cheap to copy. The group lives as long as one of its handles or a
/// tensor in its memory. Each collective returns a Work. Tensors must be dense, contiguous, on this
/// group's device and of a type in DType. Tensors without elements are allowed. An output must not
/// overlap its input, but this rank's part may be at its place in both.
/// Collectives are not part of autograd's graph. They increment the version of what they write.
/// With grad mode on, a backward through a tensor of a graph that a collective has written, or
/// through an output whose input requires a gradient, raises InvalidArgument. Leaves stay leaves.
/// differentiable.h has the collectives that are part of the graph.
/// On another device than the CPU, a collective is in the order of the current stream: it begins
/// after the work that the stream has, and Work::wait() makes the stream wait for it, not the
/// program.
/// Ranks: all ranks of the group issue its collectives in the same order.
/// Throws: InvalidArgument for any other tensor, before anything is sent.
class Group {
 public:
  explicit Group(std::shared_ptr<Communicator> communicator);

  int rank() const;
  int size() const;
  int local_rank() const;  ///< rank among the ranks of this host
  int local_size() const;  ///< ranks on this host
  int node() const;   ///< index of this host; hosts are numbered in the order of their first ranks
  int nodes() const;  ///< number of hosts
  /// Where tensors must be: the CPU, or one device of each rank.
  at::Device device() const { return device_; }
  /// The group of the same ranks for tensors on the CPU; this group if that is its device.
  Group host() const;

  /// tensor = reduction over ranks, in place.
  /// Shapes: the same on every rank.
  /// Throws: InvalidArgument if the dtype does not have the reduction (has_reduction()), here and
  /// in reduce() and reduce_scatter().
  Work all_reduce(const at::Tensor& tensor, Reduction reduction = ReduceOp::sum) const;
  /// The same for the sum or avg of a float32 tensor whose elements are sent in reduced precision.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Wire& wire) const;
  /// root's tensor = reduction over ranks, in place. Other ranks' tensors stay as they are.
  /// Shapes: the same on every rank.
  Work reduce(const at::Tensor& tensor, int root = 0, Reduction reduction = ReduceOp::sum) const;
  /// tensor = root's tensor, in place.
  /// Shapes: the same on every rank.
  Work broadcast(const at::Tensor& tensor, int root = 0) const;
  /// output = all ranks' inputs, concatenated in rank order along the first dimension.
  Work all_gather(const at::Tensor& output, const at::Tensor& input) const;
  /// The same with an input of counts[r] elements on rank r.
  /// Shapes: output has as many elements as the sum of counts.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<std::size_t>& counts) const;
  /// output = this rank's part of the reduction of input over ranks.
  /// Shapes: input has size() times the elements of output.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      Reduction reduction = ReduceOp::sum) const;
  /// The same with counts[r] elements for rank r.
  /// Shapes: input has as many elements as the sum of counts.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<std::size_t>& counts,
                      Reduction reduction = ReduceOp::sum) const;
  /// root's output = all ranks' inputs in rank order. On other ranks output may be undefined.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0) const;
  /// The same with an input of counts[r] elements on rank r.
  /// Shapes: root's output has as many elements as the sum of counts.
  Work gather(const at::Tensor& output, const at::Tensor& input,
              const std::vector<std::size_t>& counts, int root = 0) const;
  /// output = this rank's part of root's input. On other ranks than root input may be undefined.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0) const;
  /// The same with counts[r] elements for rank r.
  /// Shapes: root's input has as many elements as the sum of counts.
  Work scatter(const at::Tensor& output, const at::Tensor& input,
               const std::vector<std::size_t>& counts, int root = 0) const;
  /// Part r of output = the part of rank r's input for this rank.
  /// Shapes: both have size() parts of equal length.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input) const;
  /// The same with parts of different lengths: output_counts[r] elements from rank r and
  /// input_counts[r] elements for rank r. If two ranks disagree about a part, both raise an error
  /// that names both, and the world fails.
  /// Shapes: each tensor has as many elements as the sum of its counts.
  /// Throws: InvalidArgument also if the counts of this rank's part for itself differ.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<std::size_t>& output_counts,
                  const std::vector<std::size_t>& input_counts) const;
  /// A message completes the first recv() of its tag that its receiver has issued for its rank or
  /// for any_source; Work::source() is then its rank. Messages of the same two ranks and tag do not
  /// overtake one another. Both sides must pass the same number of elements and dtype. send() is
  /// complete when dst has received the message, or has copied it for a later recv().
  /// NCCL matches the messages of two ranks in order: tags that differ end the world, and
  /// any_source throws BackendUnavailable.
  Work send(const at::Tensor& tensor, int dst, std::uint32_t tag = 0) const;
  Work recv(const at::Tensor& tensor, int src, std::uint32_t tag = 0) const;
  /// Complete when every rank has issued it. Ranks do not wait for their devices.
  Work barrier() const;

  /// A number over all ranks: the mean of value; whether condition holds on any rank; whether it
  /// holds on all. For decisions that all ranks must make alike. Every rank gets the same result.
  /// These block, also on devices.
  /// Ranks: all.
  double mean(double value) const;
  bool any(bool condition) const;
  bool all(bool condition) const { return !any(!condition); }

  /// An uninitialised tensor on the group's device, on the CPU in memory that the group exchanges
  /// without a copy.
  /// Ranks: any; not collective.
  /// Throws: InvalidArgument for a size below 0, or a number of bytes above 2^64. CommError if
  /// memory is short.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const;

  /// Runs fn on rank 0, then on rank 1, and so on. For state that thread ranks share, such as
  /// LibTorch's random generator. An exception of fn propagates on its own rank and ends the world
  /// for the other ranks.
  /// Ranks: all.
  void in_turn(const std::function<void()>& fn) const;

  /// The new group of the ranks that pass the same color, ordered by (key, rank).
  /// Ranks: all.
  /// Throws: InvalidArgument if color is negative.
  Group split(int color, int key = 0) const;

  /// The new group of these ranks of this group, in this order. Only its members call it. With
  /// backend host, the new group is a world of its own (see join()): its failure does not end this
  /// group, nor that of this group the new one. With backends mpi, tcp and hierarchical, its
  /// failure ends the world.
  /// Ranks: members, with the same list. Members of several new groups create them in one order.
  /// Throws: InvalidArgument if members has a rank twice, no rank of this group, or not the calling
  /// rank. BackendUnavailable with other backends. TimeoutError and CommError as join().
  Group new_group(const std::vector<int>& members) const;

  /// The group of this host's ranks.
  /// Ranks: all.
  Group local() const { return split(node()); }
  /// The group of the ranks with this local_rank(), one on each host that has such a rank.
  /// Ranks: all.
  Group across_nodes() const { return split(local_rank()); }

  /// Cost of this group's collectives on this rank so far, by collective and bucket. to_text()
  /// formats them as a table.
  Statistics statistics() const;

  /// The implementation over raw memory. It is not part of the public API.
  Communicator& communicator() const { return *communicator_; }

 private:
  std::shared_ptr<Communicator> communicator_;
  at::Device device_ = at::kCPU;
};

/// Runs fn on every rank. If fn fails on one rank, the call fails on all ranks. A rank where fn
/// failed raises its own error. The others raise an error that names the lowest such rank:
/// InvalidArgument, CheckpointError or DataError if that rank raised it, else Error. The group
/// stays usable. For work that can fail on one rank only, such as reading files.
/// Ranks: all. fn must not communicate.
void all_or_none(const Group& group, const std::function<void()>& fn);

}  // namespace lockstep
