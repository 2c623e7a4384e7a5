#include "adapter/failure_board.h"

#include <exception>
#include <tuple>
#include <utility>

#include "core/log.h"
#include "core/text.h"

namespace lockstep::inline v0_2::adapter {
namespace {

using detail::concat;

constexpr auto between_looks = std::chrono::milliseconds(100);
constexpr auto patience = std::chrono::seconds(1);
constexpr char timed_out = 't';
constexpr char failed_otherwise = 'f';

std::string text_of(const control::Failure& failure) {
  return concat(failure.timeout ? timed_out : failed_otherwise, failure.text);
}

}  // namespace

FailureBoard::FailureBoard(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t world,
                           Heard heard)
    : store_(store->clone()),
      key_(concat("lockstep/world/", world, "/failure")),
      heard_(std::move(heard)),
      thread_([this] { run(); }) {}

FailureBoard::~FailureBoard() {
  if (process_.in_child()) {
    thread_.detach();  // it runs in the parent only
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

void FailureBoard::tell(const control::Failure& failure) noexcept {
  std::unique_lock lock(mutex_);
  if (!told_) told_ = failure;
  changed_->notify_all();
  changed_->wait_for(lock, patience, [this] { return ended_; });
}

void FailureBoard::ask() {
  std::unique_lock lock(mutex_);
  asked_ = true;
  changed_->notify_all();
  changed_->wait_for(lock, patience, [this] { return ended_ || !asked_; });
}

void FailureBoard::run() {
  try {
    while (look()) answer();
  } catch (const std::exception& error) {
    // The rank that serves the store may have ended well, and before the others.
    log::warn(concat("c10d: the store answers no more: ", error.what()));
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_->notify_all();
}

bool FailureBoard::look() {
  std::optional<control::Failure> told;
  {
    std::unique_lock lock(mutex_);
    changed_->wait_for(lock, between_looks, [this] { return stopping_ || told_ || asked_; });
    told = told_;
    if (!told && stopping_) return false;
  }
  std::string text;
  if (told) {
    // The first failure counts.
    text = store_->compareSet(key_, "", text_of(*told));
  } else if (store_->check({key_})) {
    text = store_->get_to_str(key_);
  }
  if (text.empty()) return !told;
  heard_({.timeout = text.front() == timed_out, .text = text.substr(1)});
  return false;
}

void FailureBoard::answer() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = false;
  }
  changed_->notify_all();
}

}  // namespace lockstep::adapter
