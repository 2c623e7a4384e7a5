#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/deadline.h"
#include "lockstep/denormals.h"
#include "lockstep/work.h"

namespace lockstep_torch {

class Progress;
using lockstep::detail::Deadline;
using Clock = Deadline::Clock;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// The parts of a Work that are not complete. The mutex of Progress guards them.
struct Parts {
  std::deque<lockstep::Work> operations;
  std::chrono::nanoseconds worked{};  ///< in the first operation, when it was polled last
  int source = lockstep::any_source;  ///< rank whose message was received last
  std::exception_ptr error;           ///< of a receive that was withdrawn
  Deadline deadline{Deadline::longest};
  bool flushes_denormals = lockstep::flushes_denormals();  ///< where the operation began
};

/// One asynchronous operation of a process group. Any thread may wait for it.
class BackendWork final : public c10d::Work {
 public:
  /// title: a string literal such as "lockstep:all_reduce".
  BackendWork(std::shared_ptr<Progress> progress, int rank, c10d::OpType type, const char* title,
              const std::vector<at::Tensor>& inputs, TensorLists outputs, std::uint64_t sequence);

  bool isCompleted() override;
  /// timeout: 0 for no limit of this wait. A wait that passes its limit does not end the operation.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  int sourceRank() const override { return source_; }
  std::uint64_t getSequencenumber() const override { return sequence_; }

  /// "all_reduce".
  const char* name() const;
  bool done() const { return future_->completed(); }

  /// Keeps a tensor until the operation is complete.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  /// Sets what is done with the results before the Work is complete, without a lock.
  void then(std::function<void()> after) { after_ = std::move(after); }
  /// Completes the Work and calls its future's callbacks. Called once, without a lock.
  void complete(std::exception_ptr error);

  Parts parts;

 private:
  c10::IValue value() const;

  std::shared_ptr<Progress> progress_;
  const char* title_;
  TensorLists outputs_;
  std::uint64_t sequence_;
  int source_ = -1;
  bool inference_mode_ = c10::InferenceMode::is_enabled();  ///< where the operation began
  std::vector<at::Tensor> kept_;
  std::function<void()> after_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

using WorkPointer = c10::intrusive_ptr<BackendWork>;

}  // namespace lockstep_torch
