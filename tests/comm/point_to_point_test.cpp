#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/announcement.h"
#include "comm/messages/point_to_point_protocol.h"
#include "comm/messages/transport.h"

// send() and recv() over a transport whose messages end in the order that a test chooses.

namespace lockstep::testing {
namespace {

using messages::Channel;

/// Keeps the messages that were begun.
class ManualTransport final : public messages::Transport {
 public:
  struct Message {
    std::byte* data;
    std::size_t bytes;
    Done done;
  };

  void send(const std::byte* data, std::size_t bytes, int, int tag, Done done) override {
    begun_[tag].push_back({const_cast<std::byte*>(data), bytes, std::move(done)});
  }
  void receive(std::byte* data, std::size_t bytes, int, int tag, Done done) override {
    begun_[tag].push_back({data, bytes, std::move(done)});
  }
  bool progress() override { return false; }
  void stop() noexcept override {}

  std::size_t begun(Channel channel) { return begun_[messages::tag_of(0, channel)].size(); }
  /// The message of a channel that began as the index-th ends; a received one has these terms.
  void end(Channel channel, std::size_t index, const detail::MessageTerms* received = nullptr) {
    auto& message = begun_[messages::tag_of(0, channel)].at(index);
    if (received != nullptr) std::memcpy(message.data, received, sizeof *received);
    message.done(message.bytes);
  }

 private:
  std::map<int, std::vector<Message>> begun_;
};

struct Pair {
  messages::MessageGroup group{.rank = 0, .members = {4, 7}};
  ManualTransport transport;
  std::vector<float> memory = std::vector<float>(3);

  messages::GroupTransport view() { return {group, transport}; }
  Operation operation(Collective collective, std::uint64_t sequence) {
    auto* data = reinterpret_cast<std::byte*>(memory.data());
    return {.collective = collective,
            .dtype = DType::f32,
            .input = data,
            .output = data,
            .count = memory.size(),
            .peer = 1,
            .sequence = sequence};
  }
};

TEST(PointToPoint, PayloadsAreReceivedInTheOrderOfTheirNumbers) {
  Pair pair;
  const auto first_operation = pair.operation(Collective::recv, 1);
  const auto second_operation = pair.operation(Collective::recv, 2);
  const auto terms = detail::terms_of(first_operation);
  std::uint64_t received = 0;
  messages::PointToPointProtocol first(pair.view(), first_operation, received);
  messages::PointToPointProtocol second(pair.view(), second_operation, received);
  first.begin();
  second.begin();
  for (const std::size_t index : {0, 1}) pair.transport.end(Channel::offers, index, &terms);
  pair.transport.end(Channel::replies, 1);
  second.advance();
  EXPECT_EQ(pair.transport.begun(Channel::payloads), 0U) << "the first has not been accepted yet";
  pair.transport.end(Channel::replies, 0);
  first.advance();
  second.advance();
  EXPECT_EQ(pair.transport.begun(Channel::payloads), 2U);
  pair.transport.end(Channel::payloads, 0);
  first.advance();
  second.advance();
  EXPECT_TRUE(first.complete());
  EXPECT_FALSE(second.complete());
}

TEST(PointToPoint, ASendIsCompleteOnceItsReceiverHasReplied) {
  Pair pair;
  const auto operation = pair.operation(Collective::send, 1);
  const auto terms = detail::terms_of(operation);
  std::uint64_t received = 0;
  messages::PointToPointProtocol send(pair.view(), operation, received);
  send.begin();
  pair.transport.end(Channel::offers, 0);
  pair.transport.end(Channel::payloads, 0);
  send.advance();
  EXPECT_FALSE(send.complete());
  pair.transport.end(Channel::replies, 0, &terms);
  send.advance();
  EXPECT_TRUE(send.complete());
}

TEST(PointToPoint, BothEndsFindAMismatchOnceTheirOwnTermsHaveLeft) {
  for (const auto collective : {Collective::send, Collective::recv}) {
    const bool sends = collective == Collective::send;
    Pair pair;
    const auto operation = pair.operation(collective, 1);
    auto other = detail::terms_of(operation);
    other.count = 2;
    std::uint64_t received = 0;
    messages::PointToPointProtocol protocol(pair.view(), operation, received);
    protocol.begin();
    pair.transport.end(sends ? Channel::replies : Channel::offers, 0, &other);
    protocol.advance();
    pair.transport.end(sends ? Channel::offers : Channel::replies, 0);
    try {
      protocol.advance();
      ADD_FAILURE() << "accepted";
    } catch (const messages::Mismatch& mismatch) {
      const std::string ends = sends ? "from rank 4 to rank 7" : "from rank 7 to rank 4";
      EXPECT_NE(std::string(mismatch.what()).find(ends), std::string::npos) << mismatch.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
