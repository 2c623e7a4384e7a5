#include "lockstep/work.h"

#include <exception>

#include "comm/request.h"
#include "comm/waiting.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

void detail::Request::wait_observed() {
  const auto begin = std::chrono::steady_clock::now();
  const auto work_before = work_done();
  wait();
  observer_->ended(observed_, {.wait_began = begin,
                               .wait_ended = std::chrono::steady_clock::now(),
                               .worked_in_wait = work_done() - work_before,
                               .worked = worked_,
                               .interval = interval_});
  observer_.reset();
}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    request_ = std::move(other.request_);
  }
  return *this;
}

void Work::wait() {
  // After a CommError the Work is empty. After an InvalidArgument (another thread uses the group)
  // it stays pending.
  const auto request = std::move(request_);
  if (request == nullptr) return;
  try {
    request->is_observed() ? request->wait_observed() : request->wait();
  } catch (const InvalidArgument&) {
    request_ = request;
    throw;
  }
}

bool Work::complete() const { return request_ == nullptr || request_->complete(); }

void Work::check() {
  if (request_ != nullptr) request_->check();
}

std::chrono::nanoseconds Work::worked() const {
  return request_ != nullptr ? request_->worked() : std::chrono::nanoseconds();
}

std::vector<int> Work::missing() const {
  return request_ != nullptr ? request_->missing() : std::vector<int>();
}

bool Work::ready() { return request_ == nullptr || request_->test(); }

void Work::finish() noexcept {
  if (request_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    request_->abandon();
    return;
  }
  try {
    wait();
  } catch (...) {
    // The failed wait has ended the world. The group's next call raises the cause.
  }
}

}  // namespace lockstep
