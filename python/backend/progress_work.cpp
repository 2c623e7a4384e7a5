#include "backend/progress_work.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "backend/errors.h"
#include "backend/progress.h"
#include "core/system/denormals_guard.h"

namespace lockstep_torch {
namespace {

c10::TypePtr future_type(const TensorLists& outputs) {
  const auto list = c10::ListType::create(c10::TensorType::get());
  if (outputs.size() > 1) return c10::ListType::create(list);
  return list;
}

}  // namespace

BackendWork::BackendWork(std::shared_ptr<Progress> progress, int rank, c10d::OpType type,
                         const char* title, const std::vector<at::Tensor>& inputs,
                         TensorLists outputs, std::uint64_t sequence)
    : c10d::Work(rank, type, title,
                 inputs.empty() ? std::nullopt : std::optional<std::vector<at::Tensor>>(inputs)),
      progress_(std::move(progress)),
      title_(title),
      outputs_(std::move(outputs)),
      sequence_(sequence),
      future_(c10::make_intrusive<c10::ivalue::Future>(future_type(outputs_))) {}

const char* BackendWork::name() const { return title_ + std::strlen("lockstep:"); }

bool BackendWork::isCompleted() {
  if (!done()) progress_->advance();
  return done();
}

bool BackendWork::wait(std::chrono::milliseconds timeout) {
  Deadline deadline(timeout.count() > 0 ? timeout : Deadline::longest);
  if (!progress_->wait(*this, deadline)) {
    fail(c10::str("lockstep ", name(), " rank ", rank_, ": Timed out waiting ", timeout.count(),
                  " ms for the operation to complete"));
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return true;
}

std::vector<at::Tensor> BackendWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& list : outputs_) all.insert(all.end(), list.begin(), list.end());
  return all;
}

c10::IValue BackendWork::value() const {
  if (outputs_.size() > 1) return outputs_;
  return outputs_.empty() ? std::vector<at::Tensor>() : outputs_.front();
}

void BackendWork::complete(std::exception_ptr error) {
  // Another thread may complete the Work and run the callbacks of its future.
  const lockstep::detail::DenormalsGuard denormals(parts.flushes_denormals);
  source_ = parts.source;
  if (!error && after_) {
    try {
      // A tensor of inference mode changes in it only.
      const c10::InferenceMode mode(inference_mode_);
      const c10::AutoGradMode no_grad(false);
      after_();
    } catch (...) {
      error = std::current_exception();
    }
  }
  after_ = nullptr;
  kept_.clear();
  if (error) error = python_error(error);
  finish(error);
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(value());
  }
}

}  // namespace lockstep_torch
