#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "adapter/c10d_rank_context.h"
#include "comm/messages/transport.h"
#include "comm/operation.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::adapter {

/// An operation of this rank, which a RequestThread runs.
class C10dRequest {
 public:
  C10dRequest(std::shared_ptr<RankContext> context,
              std::shared_ptr<const messages::MessageGroup> group, Operation&& operation)
      : context_(std::move(context)), group_(std::move(group)), operation_(std::move(operation)) {}
  C10dRequest(const C10dRequest&) = delete;
  C10dRequest& operator=(const C10dRequest&) = delete;

  /// Runs the operation to its end; an error fails the world. Does not use the caller's buffers
  /// afterwards.
  void run() noexcept;
  /// Marks the operation as ended without running it. complete: its result is valid.
  void end(bool complete) noexcept;

  /// Call these three under the context's lock, in look() or await().
  bool ended() const { return ended_; }
  bool complete() const { return complete_; }
  /// The rank of the backend whose message the operation waits for.
  std::optional<int> awaited() const { return awaited_; }

  const Operation& operation() const { return operation_; }
  std::chrono::nanoseconds worked() const { return worked_; }

 private:
  /// Runs the protocol of the operation, and blocks until it is complete.
  /// Throws: Mismatch when ranks issued different operations; otherwise what the backend throws.
  void run_protocol();

  std::shared_ptr<RankContext> context_;
  std::shared_ptr<const messages::MessageGroup> group_;
  Operation operation_;
  std::chrono::nanoseconds worked_{};
  std::optional<int> awaited_;
  bool ended_ = false;
  bool complete_ = false;
};

/// A thread that runs requests one after another, in the order in which they were added.
class RequestThread {
 public:
  RequestThread() : thread_([this] { run(); }) {}
  /// Waits for all added requests.
  ~RequestThread();
  RequestThread(const RequestThread&) = delete;
  RequestThread& operator=(const RequestThread&) = delete;

  void add(std::shared_ptr<C10dRequest> request);

 private:
  void run();

  std::mutex mutex_;
  /// A forked child does not destroy it: the destructor would wait for the parent's thread.
  std::unique_ptr<std::condition_variable> added_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<C10dRequest>> requests_;
  bool ending_ = false;
  detail::ForkGuard process_;
  std::thread thread_;
};

/// The messages of one request thread over a c10d::Backend. progress() blocks until the first
/// receive has ended, or the first send if there is no receive.
/// Throws: what the backend throws; std::runtime_error when the world has failed.
class C10dTransport final : public messages::Transport {
 public:
  /// longest is the longest wait for one message. While progress() waits, awaited is the rank of
  /// that message; it is written under the context's lock.
  C10dTransport(RankContext& context, std::chrono::milliseconds longest,
                std::optional<int>& awaited)
      : context_(context), longest_(longest), awaited_(awaited) {}
  ~C10dTransport() override { stop(); }

  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) override;
  void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) override;
  bool progress() override;
  /// Aborts the messages that have not ended. The backend does not use their memory afterwards.
  void stop() noexcept override;

 private:
  struct Message {
    RankContext::Posted posted;
    int rank;
    std::size_t bytes;
    Done done;
  };

  RankContext& context_;
  std::chrono::milliseconds longest_;
  std::optional<int>& awaited_;
  std::deque<Message> receives_;
  std::deque<Message> sends_;
};

}  // namespace lockstep::adapter
