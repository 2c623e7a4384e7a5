#include "adapter/failure_store.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <tuple>
#include <utility>

#include "core/log.h"
#include "core/text.h"

namespace lockstep::inline v0_2::adapter {
namespace {

using detail::concat;
using detail::Failure;

constexpr auto poll_interval = std::chrono::milliseconds(100);
constexpr auto max_wait = std::chrono::seconds(1);

/// The value in the store: a digit for the kind, the rank at fault, a space, the text.
std::string text_of(const Failure& failure) {
  return concat(static_cast<int>(failure.kind), failure.rank, ' ', failure.text);
}

Failure failure_in(const std::string& text) {
  Failure failure{.kind = detail::failure_kind(text.front() - '0')};
  const auto end = std::min(text.find(' '), text.size());
  std::from_chars(text.data() + 1, text.data() + end, failure.rank);
  failure.text = text.substr(std::min(end + 1, text.size()));
  return failure;
}

}  // namespace

FailureStore::FailureStore(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t world,
                           Callback on_failure)
    : store_(store->clone()),
      key_(concat("lockstep/world/", world, "/failure")),
      on_failure_(std::move(on_failure)),
      thread_([this] { run(); }) {}

FailureStore::~FailureStore() {
  if (process_.in_child()) {
    thread_.detach();  // the thread exists only in the parent
    std::ignore = changed_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_->notify_all();
  thread_.join();
}

void FailureStore::publish(const Failure& failure) noexcept {
  std::unique_lock lock(mutex_);
  if (!own_failure_) own_failure_ = failure;
  changed_->notify_all();
  changed_->wait_for(lock, max_wait, [this] { return ended_; });
}

void FailureStore::poll_now() {
  std::unique_lock lock(mutex_);
  poll_requested_ = true;
  changed_->notify_all();
  changed_->wait_for(lock, max_wait, [this] { return ended_ || !poll_requested_; });
}

void FailureStore::run() {
  try {
    while (poll()) complete_poll();
  } catch (const std::exception& error) {
    // The rank that serves the store may end before the others without a failure.
    log::warn(concat("c10d: the store does not answer any more: ", error.what()));
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_->notify_all();
}

bool FailureStore::poll() {
  std::optional<Failure> own_failure;
  {
    std::unique_lock lock(mutex_);
    changed_->wait_for(lock, poll_interval,
                       [this] { return stopping_ || own_failure_ || poll_requested_; });
    own_failure = own_failure_;
    if (!own_failure && stopping_) return false;
  }
  std::string text;
  if (own_failure) {
    // Keeps the first failure.
    text = store_->compareSet(key_, "", text_of(*own_failure));
  } else if (store_->check({key_})) {
    text = store_->get_to_str(key_);
  }
  if (text.empty()) return !own_failure;
  on_failure_(failure_in(text));
  return false;
}

void FailureStore::complete_poll() {
  {
    const std::lock_guard lock(mutex_);
    poll_requested_ = false;
  }
  changed_->notify_all();
}

}  // namespace lockstep::adapter
