#include "backend/progress.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "backend/errors.h"
#include "backend/pauses.h"
#include "comm/waiting.h"
#include "core/failure.h"
#include "core/system/denormals_guard.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [Which thread advances operations]
// A Communicator admits one thread at a time, and an operation advances only while a thread polls
// it. A thread that waits for a Work therefore polls the operations of all Works, which costs no
// switch between threads. A future has no such thread: callers block in it, and its callbacks begin
// further operations. One progress thread therefore polls whenever no other thread does.
// A callback may block until another operation is complete, as the communication hook of PowerSGD
// does. A thread that completes Works is therefore not counted as polling meanwhile, and another
// progress thread takes over; there are as many as callbacks block at a time.

namespace lockstep_torch {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto between_checks = milliseconds(200);
constexpr auto longest_drain = std::chrono::seconds(5);
constexpr auto between_signals = milliseconds(50);

int ranks_of_this_host(const lockstep::Communicator& world) {
  const auto& hosts = world.hosts();
  return static_cast<int>(std::ranges::count(hosts, hosts[static_cast<std::size_t>(world.rank())]));
}

}  // namespace

Progress::Progress(World world, milliseconds timeout)
    : shared_mutex_(std::move(world.mutex)),
      world_(std::move(world.communicator)),
      timeout_(timeout),
      fits_cores_(
          lockstep::detail::fit_cores(ranks_of_this_host(*world_), at::get_num_threads(), 0)) {}

Progress::~Progress() { stop(); }

void Progress::expect_usable() const {
  if (process_.in_child()) {
    lockstep_torch::fail(
        "lockstep: this process was forked from a rank and is not a rank; use "
        "the process group in the process that created it");
  }
  if (stopping_) {
    lockstep_torch::fail("lockstep: the process group has been destroyed; create another one");
  }
}

void Progress::submit(const WorkPointer& work, Terms terms,
                      const std::function<void(Scope)>& begin) {
  expect_usable();
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    expect_usable();
    work->parts.deadline = Deadline(terms.timeout.count() > 0 ? terms.timeout : timeout());
    with_python_errors([&] { begin({*world_, work->parts}); });
    pending_.push_back(work);
    advance(finished);
    if (terms.asynchronous && !pending_.empty()) ensure_leader();
  }
  complete(finished);
}

bool Progress::advance() {
  Finished finished;
  bool moved = false;
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock) {
    moved = advance(finished);
    if (!finished.empty() && !pending_.empty()) ensure_leader();
  }
  complete(finished);
  return moved;
}

bool Progress::wait(BackendWork& work, Deadline& deadline) {
  if (work.done()) return true;
  if (process_.in_child()) expect_usable();
  Pauses pauses(fits_cores_ ? microseconds(200) : microseconds(10));
  ++waiting_;
  const bool in_main_thread = ::gettid() == ::getpid();
  auto now = Clock::now();
  auto looked = now;
  auto shown = now;
  std::exception_ptr signal;
  while (!work.done() && !deadline.passed() && !signal) {
    Finished finished;
    bool moved = false;
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      moved = advance(finished);
      if (now - shown > between_checks) {
        shown = now;
        ShownWait::show(shown_wait_, work);
      }
    }
    if (!finished.empty()) {
      --waiting_;
      complete(finished);
      ++waiting_;
    }
    if (moved) pauses.restart();
    if (work.done()) break;
    pauses.pause();
    now = Clock::now();
    if (!in_main_thread || now - looked < between_signals) continue;
    looked = now;
    try {
      raise_signals();
    } catch (...) {
      signal = std::current_exception();
    }
  }
  const bool done = work.done();
  {
    std::lock_guard lock(mutex_);
    --waiting_;
    if (shown_wait_ && shown_wait_->is_of(work)) shown_wait_.reset();
    if (!done) ensure_leader();
  }
  waits_ended_.notify_all();
  if (signal) {
    fail("a signal interrupted its wait");  // the other ranks need not wait for the timeout
    std::rethrow_exception(signal);
  }
  return done;
}

void Progress::fail(const std::string& cause) noexcept {
  if (process_.in_child()) return;
  const std::lock_guard lock(mutex_);
  if (world_) world_->fail(cause);
}

void Progress::locked(
    const std::function<void(const std::shared_ptr<lockstep::Communicator>&)>& function) {
  const std::lock_guard lock(mutex_);
  expect_usable();
  function(world_);
}

void Progress::before_leaving(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  before_leaving_.push_back(std::move(function));
}

std::shared_ptr<std::byte> Progress::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  expect_usable();
  return with_python_errors([&] { return world_->allocate(bytes); });
}

void Progress::complete(Finished& finished) {
  for (auto& [work, error] : finished) work->complete(error);
  finished.clear();
}

bool Progress::advance(Finished& finished) {
  if (pending_.empty() || !world_) return false;
  const auto now = Clock::now();
  const bool check = now - last_check_ > between_checks;
  if (check) last_check_ = now;

  bool moved = false;
  for (auto next = pending_.begin(); next != pending_.end();) {
    auto& work = **next;
    std::exception_ptr error;
    try {
      if (advance(work, check)) moved = true;
      error = work.parts.error;
    } catch (...) {
      error = std::current_exception();
    }
    if (!error && !work.parts.operations.empty()) {
      ++next;
      continue;
    }
    if (error) work.parts.operations.clear();
    finished.emplace_back(*next, error);
    next = pending_.erase(next);
    moved = true;
  }
  return moved;
}

bool Progress::advance(BackendWork& work, bool check) {
  const lockstep::detail::DenormalsGuard guard(work.parts.flushes_denormals);
  bool moved = false;
  auto& operations = work.parts.operations;
  while (!operations.empty() && operations.front().ready()) {
    operations.front().wait();
    work.parts.source = operations.front().source();
    operations.pop_front();
    work.parts.worked = {};
    moved = true;
  }
  if (!operations.empty()) {
    // A large operation moves in many pieces.
    const auto worked = operations.front().worked();
    if (worked != work.parts.worked) moved = true;
    work.parts.worked = worked;
  }
  if (check && !operations.empty()) {
    operations.front().check();
    expect_in_time(work, operations.front().missing());
  }
  return moved;
}

void Progress::expect_in_time(BackendWork& work, std::vector<int> missing) {
  if (!work.parts.deadline.passed()) return;
  std::ranges::sort(missing);
  const auto waited = std::chrono::floor<milliseconds>(work.parts.deadline.elapsed()).count();
  const auto text =
      c10::str("lockstep ", work.name(), " rank ", world_->rank(), " of ", world_->size(),
               ": Timed out waiting ", waited, " ms", missing.empty() ? "" : " for ranks ",
               lockstep::detail::joined(missing, ", "),
               "; give the process group a longer timeout, or find out what these ranks do");
  world_->fail_with({.kind = lockstep::detail::Failure::Kind::timeout,
                     .rank = missing.empty() ? -1 : missing.front(),
                     .text = text});
  throw lockstep::TimeoutError(text);
}

void Progress::ensure_leader() {
  if (led_ || stopping_) return;
  if (idle_ > 0) {
    work_begun_.notify_one();
  } else {
    // The thread may drop the last Work, and with it the last other reference.
    threads_.emplace_back([self = shared_from_this()] { self->run(); });
  }
}

void Progress::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (led_ || pending_.empty()) {
      ++idle_;
      work_begun_.wait(lock, [&] { return stopping_ || (!led_ && !pending_.empty()); });
      --idle_;
      if (stopping_) return;
    }
    led_ = true;
    lead(lock);
  }
}

/// Advances operations until none is pending or a Work is complete. Returns without the lead.
void Progress::lead(std::unique_lock<std::mutex>& lock) {
  Pauses pauses(microseconds(20));
  Finished finished;
  while (!stopping_ && !pending_.empty() && finished.empty()) {
    if (waiting_ > 0) {
      waits_ended_.wait_for(lock, milliseconds(2), [&] { return stopping_ || waiting_ == 0; });
      continue;
    }
    const bool moved = advance(finished);
    if (!finished.empty()) break;
    lock.unlock();
    if (moved) {
      pauses.restart();
    } else {
      pauses.pause();
    }
    lock.lock();
  }
  led_ = false;
  if (finished.empty()) return;
  if (!pending_.empty()) ensure_leader();
  lock.unlock();
  complete(finished);
  lock.lock();
}

namespace {

std::exception_ptr destroyed() {
  return std::make_exception_ptr(
      lockstep::CommError("lockstep: the process group was destroyed before the operation was "
                          "complete; wait for every Work first"));
}

}  // namespace

void Progress::withdraw_receives() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& work : pending_) {
    for (auto& operation : work->parts.operations) {
      try {
        if (operation.cancel()) work->parts.error = destroyed();
      } catch (...) {
        // The world has failed, as advance() finds.
      }
    }
  }
}

void Progress::drain() noexcept {
  Deadline deadline(longest_drain);
  Pauses pauses(microseconds(20));
  for (;;) {
    Finished finished;
    bool waits = false;
    {
      std::lock_guard lock(mutex_);
      advance(finished);
      waits = std::ranges::any_of(
          pending_, [](const WorkPointer& work) { return !work->parts.operations.empty(); });
    }
    complete(finished);
    if (!waits || deadline.passed()) return;
    pauses.pause();
  }
}

void Progress::stop() noexcept {
  if (process_.in_child()) {
    // The threads and their locks belong to the rank's process.
    for (auto& thread : threads_) thread.detach();
    threads_.clear();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  work_begun_.notify_all();
  waits_ended_.notify_all();
  // Before the threads, on which a callback may wait for an operation, and after what callbacks
  // have begun meanwhile.
  end_operations();
  for (auto& thread : threads_) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
  threads_.clear();
  end_operations();
  std::vector<std::function<void()>> functions;
  std::shared_ptr<lockstep::Communicator> world;
  {
    std::lock_guard lock(mutex_);
    functions.swap(before_leaving_);
    shown_wait_.reset();
    world.swap(world_);
  }
  for (const auto& function : functions) function();
}

void Progress::end_operations() noexcept {
  withdraw_receives();
  drain();
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    for (const auto& work : pending_) {
      if (!work->parts.operations.empty()) {
        world_->fail("the process group was destroyed with operations in progress");
      }
      work->parts.operations.clear();
      finished.emplace_back(work, destroyed());
    }
    pending_.clear();
  }
  complete(finished);
}

}  // namespace lockstep_torch
