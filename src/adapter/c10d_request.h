#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "adapter/c10d_rank_context.h"
#include "comm/messages/message_group.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::adapter {

/// An operation of this rank between begin and its end. A thread runs it, while the rank's thread
/// waits or does something else.
class C10dRequest {
 public:
  C10dRequest(std::shared_ptr<RankContext> context,
              std::shared_ptr<const messages::MessageGroup> group, Operation&& operation)
      : context_(std::move(context)), group_(std::move(group)), operation_(std::move(operation)) {}
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

 private:
  /// Moves its bytes, blocking. Throws: Mismatch when ranks issued different operations; else what
  /// the backend throws.
  void move_bytes();

  std::shared_ptr<RankContext> context_;
  std::shared_ptr<const messages::MessageGroup> group_;
  Operation operation_;
  std::chrono::nanoseconds worked_{};
  std::optional<int> awaited_;
  bool over_ = false;
  bool complete_ = false;
};

}  // namespace lockstep::adapter
