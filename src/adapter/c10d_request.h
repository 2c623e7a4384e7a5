#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapter/c10d_channel.h"
#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::adapter {

/// An operation of this rank between begin and its end. Its thread runs it, in a thread of its own,
/// while the rank's thread waits or does something else.
class C10dRequest {
 public:
  C10dRequest(std::shared_ptr<const Channel> channel, Operation&& operation)
      : channel_(std::move(channel)), operation_(std::move(operation)) {}
  virtual ~C10dRequest() = default;
  C10dRequest(const C10dRequest&) = delete;
  C10dRequest& operator=(const C10dRequest&) = delete;

  /// Runs it to its end; what goes wrong ends the world. Its buffers are the caller's again.
  void run() noexcept;
  /// The same without doing anything, for one that was done otherwise, or is not to be done.
  void end(bool complete) noexcept;

  /// Under the context's look() and await().
  bool over() const { return over_; }
  bool complete() const { return complete_; }
  /// The rank of the backend whose message it waits for.
  std::optional<int> awaited() const { return awaited_; }

  const Operation& operation() const { return operation_; }
  std::chrono::nanoseconds worked() const { return worked_; }

 protected:
  /// Moves its bytes, blocking. Throws: CommError when ranks do not mean the same, in words that
  /// are the same on all; else what the backend throws.
  virtual void fly() = 0;

  const Channel& channel() const { return *channel_; }
  std::size_t element() const { return size_of(operation_.dtype); }
  void exchange(std::span<const Message> messages);
  std::chrono::nanoseconds& work() { return worked_; }

 private:
  std::shared_ptr<const Channel> channel_;
  Operation operation_;
  std::chrono::nanoseconds worked_{};
  std::optional<int> awaited_;
  bool over_ = false;
  bool complete_ = false;
};

/// A collective. Its members exchange announcements, compare them, and then move their bytes.
std::unique_ptr<C10dRequest> make_collective(std::shared_ptr<const Channel> channel,
                                             Operation&& operation);
/// A send or recv. Both ends exchange their terms, compare them, and then the payload follows.
std::unique_ptr<C10dRequest> make_message(std::shared_ptr<const Channel> channel,
                                          Operation&& operation);

}  // namespace lockstep::adapter
