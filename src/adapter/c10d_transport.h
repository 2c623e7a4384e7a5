#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "adapter/c10d_rank_context.h"
#include "comm/messages/transport.h"

namespace lockstep::inline v0_2::adapter {

/// The messages of one thread over a c10d::Backend. progress() blocks until the first receive has
/// ended, or the first send where there is no receive. Throws: what the backend throws;
/// std::runtime_error when the world has ended.
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
  /// Aborts the messages that have not ended, since their memory belongs to the caller again.
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
