#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/group.h"
#include "lockstep/model_view.h"
#include "lockstep/work.h"
#include "parallel/reducer/gradient.h"

namespace lockstep::inline v0_2 {

/// Tensors of any dtypes and strides that one collective exchanges, through a buffer in the group's
/// memory. Autograd does not record their changes.
class CoalescedTensors {
 public:
  /// The tensors must have the same sizes and dtypes on every rank.
  CoalescedTensors(std::vector<at::Tensor> tensors, const Group& group);

  /// Begins a broadcast of root's tensors.
  void begin_broadcast(int root);
  /// Begins to average the tensors over the ranks that count. They must be of one floating dtype.
  /// Received values that are not written yet count as the tensors' values.
  void begin_average(const detail::CountedRanks& counted);
  /// Completes the broadcast or the average. The received values wait for write().
  void end();
  /// Writes the received values, except those of tensors that the program has changed since end().
  void write();
  /// Whether received values wait for write().
  bool waits() const { return !places_.empty(); }
  void discard() { places_.clear(); }
  /// Whether the tensor has the sizes of the construction. Exchanges leave out others.
  bool fits(std::size_t index) const;
  /// Exchanges this tensor instead of the one at the index from now on. Returns whether it has the
  /// sizes and the dtype of that.
  bool replace(std::size_t index, const at::Tensor& tensor);
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  /// A tensor's memory, and the autograd version of its values.
  struct Place {
    c10::Storage memory;
    std::int64_t version;
  };

  bool waits(std::size_t index) const;
  void pack();

  std::vector<at::Tensor> tensors_;
  Group group_;
  at::Tensor buffer_;               ///< bytes
  std::vector<at::Tensor> packed_;  ///< parts of the buffer with the tensors' dtypes and sizes
  std::vector<Place> places_;       ///< of the tensors, while received values wait
  bool receives_ = false;           ///< the collective gives this rank values
  Work work_;
};

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

class BufferSync;
struct ModelState;

/// The graph of one forward of a wrapper. It may have saved buffers. Hooks on the forward's outputs
/// own it.
class ForwardGraph {
 public:
  explicit ForwardGraph(const std::shared_ptr<BufferSync>& buffers);
  /// Writes received buffers if they waited for this graph. Only on the thread of the forward,
  /// because others may use the buffers.
  ~ForwardGraph();
  ForwardGraph(const ForwardGraph&) = delete;
  ForwardGraph& operator=(const ForwardGraph&) = delete;

  /// Call when a hook on an output of the forward owns the graph.
  void set_watched() { watched_ = true; }
  /// Call in a backward through the graph. Without retain_graph, no other one follows.
  void run();

 private:
  void end();

  std::weak_ptr<BufferSync> buffers_;
  std::thread::id thread_ = std::this_thread::get_id();
  bool watched_ = false;
  std::atomic<bool> has_run_ = false;
  std::atomic<bool> ended_ = false;
};

/// Synchronises the buffers of a replicated model by a policy. Received values wait in packed
/// memory until no graph of an earlier forward is still to run, because it may have saved the
/// buffers.
class BufferSync : public std::enable_shared_from_this<BufferSync> {
 public:
  /// sees_forwards: the wrapper calls begin_graph(). If not, received values wait for end_step().
  /// Throws: CommError when memory is short.
  BufferSync(const ModelState& model, BufferPolicy policy, const Group& group, bool sees_forwards);
  ~BufferSync();
  BufferSync(const BufferSync&) = delete;
  BufferSync& operator=(const BufferSync&) = delete;

  /// Throws: InvalidArgument when a TorchScript model's buffers have another number, sizes or
  /// dtypes than when it was wrapped.
  void check_tensors();
  /// Call before a forward. Writes received values.
  /// Throws: as check_tensors(). So does begin_graph().
  void prepare_forward();
  /// The same before a forward with gradients. Returns its graph.
  std::shared_ptr<ForwardGraph> begin_graph();
  /// Whether the graph of an earlier forward has ended without a backward. True once.
  bool take_unused_graph();

  /// Begins to send the buffers of the ranks that count, or of the first of them. end() waits for
  /// these collectives. Ranks: all of the group.
  void begin(const CountedRanks& counted);
  void end();
  /// Without begin_graph(), writes the received values. The step has changed parameters, so it is
  /// where the graphs of earlier forwards end.
  void end_step();

  /// Writes the values that wrappers have received for these buffers and that wait for a graph. Any
  /// thread.
  static void write(const std::vector<NamedTensor>& buffers);

 private:
  friend class ForwardGraph;

  /// One of the model's buffers, in all_.
  struct Place {
    std::size_t collective;
    std::size_t index;
    bool is_repeated = false;  ///< it has an earlier name, too
  };

  /// Takes the tensors that the model has now: a forward of TorchScript may assign others. Returns
  /// what prevents that, if anything does.
  std::string take_tensors();
  std::string changed_in_place() const;
  bool waits() const;
  /// A graph that has saved a buffer then raises LibTorch's error.
  void write();
  void write_unless_used();

  /// Averaged ones, one for each dtype, before those of one rank.
  std::vector<CoalescedTensors> all_;
  std::size_t averaged_ = 0;
  ModelView model_;
  std::vector<Place> places_;  ///< of those that a forward can assign, in their order
  bool sees_forwards_;
  std::atomic<int> graphs_ = 0;  ///< of forwards; still to run
  std::atomic<bool> has_unused_graph_ = false;
  bool has_told_ = false;  ///< take_unused_graph() has returned true
};

}  // namespace lockstep::detail
