#include "lockstep/work.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "comm/backend_communicator.h"
#include "comm/rank_context.h"
#include "comm/waiting.h"
#include "core/deadline.h"
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
    source_ = other.source_;
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
    source_ = request->source();
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
  if (request_ == nullptr) return {};
  // A progress thread may be about to complete the operation, which frees what missing() reads.
  std::optional<detail::RankContext::CallGuard> guard;
  const auto* operation = dynamic_cast<const detail::BackendRequest*>(request_.get());
  if (operation != nullptr) guard.emplace(operation->context());
  return request_->missing();
}

bool Work::cancel() {
  if (request_ == nullptr || !request_->cancel()) return false;
  wait();  // the cancelled operation is complete
  return true;
}

int Work::source() const { return request_ != nullptr ? request_->source() : source_; }

bool Work::ready() { return request_ == nullptr || request_->test(); }

bool Work::wait_until(std::chrono::steady_clock::time_point deadline) {
  if (request_ == nullptr) return true;
  return wait_any({this, 1}, deadline, {}).has_value();
}

bool Work::wait_for(std::chrono::nanoseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto now = Clock::now();
  return wait_until(limit < Clock::time_point::max() - now ? now + limit
                                                           : Clock::time_point::max());
}

namespace {

using Clock = std::chrono::steady_clock;

/// Polls operations of several worlds, or of a backend without a RankContext.
std::optional<std::size_t> poll_any(std::span<detail::Request* const> requests,
                                    Clock::time_point deadline, const std::stop_token& stop) {
  detail::Deadline wait(Clock::duration::max());
  auto checked = Clock::now();
  for (;;) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i]->test()) return i;
    }
    const auto now = Clock::now();
    if (now >= deadline || stop.stop_requested()) return std::nullopt;
    if (now - checked >= detail::yield_time) {
      checked = now;
      const auto waited = wait.elapsed();
      for (auto* request : requests) request->check();
      for (auto* request : requests) request->check_time(waited);
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(detail::poll_pause, deadline - now));
  }
}

/// The context of all operations; null if they have several, or none.
detail::RankContext* context_of(std::span<const detail::BackendRequest* const> operations) {
  if (std::ranges::find(operations, nullptr) != operations.end()) return nullptr;
  auto& context = operations.front()->context();
  const bool is_shared = std::ranges::all_of(
      operations, [&](const auto* operation) { return &operation->context() == &context; });
  return is_shared ? &context : nullptr;
}

}  // namespace

std::optional<std::size_t> wait_any(std::span<Work> works, Clock::time_point deadline,
                                    const std::stop_token& stop) {
  std::vector<std::size_t> indices;
  std::vector<detail::Request*> requests;
  std::vector<const detail::BackendRequest*> operations;
  for (std::size_t i = 0; i < works.size(); ++i) {
    auto* request = works[i].request_.get();
    if (request == nullptr) continue;
    indices.push_back(i);
    requests.push_back(request);
    operations.push_back(dynamic_cast<const detail::BackendRequest*>(request));
  }
  if (requests.empty()) return std::nullopt;
  auto* context = context_of(operations);
  if (context == nullptr) {
    const auto first = poll_any(requests, deadline, stop);
    return first ? std::optional(indices[*first]) : std::nullopt;
  }
  const detail::RankContext::CallGuard guard(*context);
  const auto first = context->wait_any(operations, deadline, stop);
  return first ? std::optional(indices[*first]) : std::nullopt;
}

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
