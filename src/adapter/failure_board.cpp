#include "adapter/failure_board.h"

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

constexpr auto between_looks = std::chrono::milliseconds(100);
constexpr auto patience = std::chrono::seconds(1);
constexpr char timed_out = 't';
constexpr char by_program = 'p';
constexpr char otherwise = 'f';

/// What the store holds: a letter for the kind, the rank at fault, a space, the text.
std::string text_of(const control::Failure& failure) {
  const char kind = failure.timeout ? timed_out : failure.by_program ? by_program : otherwise;
  return concat(kind, failure.rank, ' ', failure.text);
}

control::Failure failure_in(const std::string& text) {
  control::Failure failure{.timeout = text.front() == timed_out,
                           .by_program = text.front() == by_program};
  const auto end = std::min(text.find(' '), text.size());
  std::from_chars(text.data() + 1, text.data() + end, failure.rank);
  failure.text = text.substr(std::min(end + 1, text.size()));
  return failure;
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
  heard_(failure_in(text));
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
