#include "lockstep/comm/work.h"

#include <exception>

#include "lockstep/core/error.h"

namespace lockstep {

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    ticket_ = std::move(other.ticket_);
  }
  return *this;
}

void Work::wait() {
  // An operation that failed is not waited for again; one that another thread waits for still is.
  const auto ticket = std::move(ticket_);
  if (ticket == nullptr) return;
  try {
    ticket->wait();
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
