#include "lockstep/comm/work.h"

#include <exception>

#include "lockstep/comm/statistics.h"
#include "lockstep/core/error.h"

namespace lockstep {

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    ticket_ = std::move(other.ticket_);
    row_ = std::move(other.row_);
  }
  return *this;
}

void Work::wait() {
  // An operation that failed is not waited for again; one that another thread waits for still is.
  const auto ticket = std::move(ticket_);
  if (ticket == nullptr) return;
  const auto begin = std::chrono::steady_clock::now();
  const auto work_before = detail::work_done();
  try {
    ticket->wait();
    if (row_ == nullptr) return;
    // Whatever this thread works on while it waits, for this operation or others, is not waiting.
    const auto work = detail::work_done() - work_before;
    row_->waiting += std::chrono::steady_clock::now() - begin - work;
    row_->working += ticket->worked();
    row_.reset();
  } catch (const InvalidArgument&) {
    ticket_ = ticket;
    throw;
  }
}

bool Work::ready() { return ticket_ == nullptr || ticket_->test(); }

void Work::finish() noexcept {
  if (ticket_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    ticket_->abandon();
    return;
  }
  try {
    wait();
  } catch (...) {
    // A failed wait has ended the world, which raises the cause at the group's next call.
  }
}

}  // namespace lockstep
