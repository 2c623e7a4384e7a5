#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "backend/membership.h"
#include "backend/progress.h"
#include "backend/progress_work.h"

namespace lockstep_torch {

/// Calls a function that waits for threads. The calling thread releases the interpreter's lock
/// meanwhile, if it has it. In module.cpp.
void without_interpreter_lock(const std::function<void()>& function);

/// A c10d reduction over tensors of one dtype. Complex numbers are pairs of real numbers.
struct Reduction {
  lockstep::DType dtype;
  lockstep::Reduction reduction;
};

/// A backend of torch.distributed over a world of ranks. Tensors are dense tensors of
/// the CPU, and a sparse tensor for all_reduce. Every process group on one host has a world of its
/// own, so that a failure of one group does not end another. A failure of a group on several hosts
/// ends all groups on several hosts.
///
/// Throws, all operations: std::invalid_argument for arguments, on the rank that passes them;
/// c10::DistBackendError, on every rank, for the first failure of the world. A collective whose
/// arguments some ranks refuse and others do not is such a failure.
class ProcessGroupLockstep final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  ProcessGroupLockstep(const c10::intrusive_ptr<c10d::Store>& store, const Membership& membership,
                       std::chrono::milliseconds timeout);
  ~ProcessGroupLockstep() override;

  const std::string getBackendName() const override { return "lockstep"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void abort() override;
  void shutdown() override;

  const std::shared_ptr<Progress>& progress() const { return progress_; }
  /// Sends the refusal of this rank's arguments to the other ranks.
  void send_refusal(lockstep::Collective collective, std::string_view refusal);

  // reductions.cpp
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work reduce_scatter(Tensors& outputs, TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;

  // copies.cpp
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allgather(TensorLists& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input,
                     std::vector<std::int64_t>& output_splits,
                     std::vector<std::int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;

  // messages.cpp
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  struct Title {
    c10d::OpType type;
    const char* text;  ///< a string literal such as "lockstep:all_reduce"
  };

  /// A tensor of one dimension in memory that the ranks read in place.
  at::Tensor shared_tensor(std::int64_t elements, const at::TensorOptions& options) const;
  /// The same for the time of an operation. In ordinary memory if it is short or long, or address
  /// space is short.
  at::Tensor scratch(std::int64_t elements, const at::TensorOptions& options);
  /// Contiguous memory for all elements: the tensors' own if that is consecutive, else scratch().
  at::Tensor memory_of(const Tensors& tensors);
  /// The same, with the elements' values.
  at::Tensor flattened(const Tensors& tensors);
  WorkPointer make_work(Title title, const Tensors& inputs, TensorLists outputs);
  /// Begins the operation that begin(world) returns, as that of the Work. Returns the Work.
  template <class Begin>
  WorkPointer start(const WorkPointer& work, Progress::Terms terms, const Begin& begin) {
    progress_->submit(work, terms, [&](Progress::Scope scope) {
      scope.parts.operations.push_back(begin(scope.world));
    });
    return work;
  }
  /// all_reduce in contiguous memory. then() is called when it is complete.
  void begin_all_reduce(const WorkPointer& work, at::Tensor input, const Reduction& reduction,
                        Progress::Terms terms, std::function<void()> then);
  /// The reduction of each input's part for this rank. counts[i]: elements of each rank's part of
  /// inputs[i].
  Work begin_reduce_scatter(Title title, const Tensors& outputs, const Tensors& inputs,
                            const std::vector<std::vector<std::size_t>>& counts,
                            const c10d::ReduceOp& op, Progress::Terms terms);
  /// all_gather of each input into its output, which is contiguous memory.
  void begin_all_gather(const WorkPointer& work, const Tensors& outputs, Tensors inputs,
                        Progress::Terms terms);
  /// Parts of any size, in contiguous memory in the order of the ranks.
  void begin_all_to_all(const WorkPointer& work, const at::Tensor& output, const at::Tensor& input,
                        const std::vector<std::size_t>& output_bytes,
                        const std::vector<std::size_t>& input_bytes, Progress::Terms terms);
  WorkPointer begin_send(const at::Tensor& tensor, int to, std::uint32_t tag,
                         Progress::Terms terms);
  WorkPointer begin_recv(Title title, const at::Tensor& tensor, int from, std::uint32_t tag,
                         Progress::Terms terms);
  /// Sends the refusal and throws it again. Called in its handler.
  [[noreturn]] void decline(lockstep::Collective collective, const std::invalid_argument& refusal) {
    send_refusal(collective, refusal.what());
    throw;
  }
  void expect_root(const char* operation, std::int64_t root) const;
  void expect_peer(const char* operation, int peer) const;

  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Progress> progress_;
  std::uint64_t sequence_ = 0;
  std::optional<bool> shares_lists_;  ///< scratch() is shared memory; null before its first call
};

}  // namespace lockstep_torch
