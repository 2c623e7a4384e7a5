#include "comm/messages/message_protocol.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/announcement.h"
#include "comm/messages/network.h"
#include "comm/messages/transfer.h"

// send() and recv() over a transport whose messages end in the order that a test chooses. The
// conformance suite and tests/simulation exchange messages that are right.

namespace lockstep::testing {
namespace {

using messages::Channel;

/// Keeps the messages that were begun.
class ManualTransport final : public messages::Network {
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
  std::string_view name() const override { return "manual"; }
  bool progress() override { return false; }
  void stop() noexcept override {}

  std::size_t begun(Channel channel) { return begun_[messages::tag_of(0, channel)].size(); }
  /// The message of a channel that began as the index-th ends.
  void end(Channel channel, std::size_t index) {
    auto& message = begun_[messages::tag_of(0, channel)].at(index);
    message.done(message.bytes);
  }
  /// The same of a received message, which has this content.
  template <class Content>
  void end(Channel channel, std::size_t index, const Content& content) {
    const auto& message = begun_[messages::tag_of(0, channel)].at(index);
    ASSERT_LE(message.bytes, sizeof content);
    std::memcpy(message.data, &content, message.bytes);
    end(channel, index);
  }

 private:
  std::map<int, std::vector<Message>> begun_;
};

class MessageProtocol : public ::testing::Test {
 protected:
  using Three = std::array<float, 3>;

  /// Of three floats between this member and the other one.
  Operation operation(Collective collective, std::uint32_t tag, Three& memory) {
    auto* data = reinterpret_cast<std::byte*>(memory.data());
    return {.collective = collective,
            .dtype = DType::f32,
            .input = data,
            .output = data,
            .count = memory.size(),
            .peer = 1,
            .tag = tag,
            .sequence = 5};
  }
  static detail::MessageTerms terms(std::uint32_t tag, std::uint64_t count = 3) {
    return {.dtype = DType::f32, .count = count, .tag = tag};
  }

  ManualTransport transport_;
  messages::MessageGroup group_{.rank = 0, .members = {4, 7}, .network = &transport_};
  messages::ReceiveProtocol receives_{group_};
};

TEST_F(MessageProtocol, AReceiverTakesMessagesOnlyForAnOpenReceive) {
  Three memory{};
  const auto recv = operation(Collective::recv, 1, memory);
  messages::Receive first(recv), second(recv);
  EXPECT_EQ(transport_.begun(Channel::offers), 0U);
  receives_.add(first);
  EXPECT_TRUE(receives_.withdraw(first));
  EXPECT_FALSE(receives_.withdraw(first));
  transport_.end(Channel::offers, 0, terms(1));
  receives_.advance();
  EXPECT_EQ(transport_.begun(Channel::replies), 0U);
  receives_.add(second);
  EXPECT_EQ(transport_.begun(Channel::replies), 1U);
  EXPECT_FALSE(receives_.withdraw(second));
  EXPECT_EQ(transport_.begun(Channel::offers), 1U);
}

TEST_F(MessageProtocol, AReceiveInOrderTakesAnyTagAndComparesIt) {
  Three memory{};
  auto recv = operation(Collective::recv, 1, memory);
  recv.issue.in_order = true;
  messages::Receive receive(recv);
  receives_.add(receive);
  transport_.end(Channel::offers, 0, terms(2));
  receives_.advance();
  transport_.end(Channel::replies, 0);
  EXPECT_THROW(receives_.advance(), messages::Mismatch);
}

TEST_F(MessageProtocol, AnAnnouncementHasTheCountOfItsOperationAndNoPayload) {
  Three memory{};
  auto operation = this->operation(Collective::send, 1, memory);
  operation.issue.part_of = std::make_shared<const Operation>(operation);
  operation.count = 0;
  EXPECT_EQ(detail::terms_of(operation).count, memory.size());
  messages::SendProtocol send(group_, operation);
  send.begin();
  EXPECT_EQ(transport_.begun(Channel::payloads), 0U);
}

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const messages::Mismatch& mismatch) {
    EXPECT_EQ(mismatch.rank(), 7) << "the receiver is at fault";
    return mismatch.what();
  }
  return {};
}

TEST_F(MessageProtocol, BothEndsFindAMismatchOnceTheirOwnTermsHaveBeenSent) {
  Three memory{};
  const auto send_operation = operation(Collective::send, 1, memory);
  messages::SendProtocol send(group_, send_operation);
  send.begin();
  transport_.end(Channel::replies, 0, messages::Reply{.terms = terms(1, 2), .number = 5});
  EXPECT_EQ(text_of([&] { send.advance(); }), "") << "the offer has not been sent";
  transport_.end(Channel::offers, 0);
  const auto of_sender = text_of([&] { send.advance(); });

  // The same message at its receiver.
  ManualTransport transport;
  messages::MessageGroup group{.rank = 1, .members = {4, 7}, .network = &transport};
  messages::ReceiveProtocol receives(group);
  auto recv_operation = operation(Collective::recv, 1, memory);
  recv_operation.peer = 0;
  recv_operation.count = 2;
  messages::Receive receive(recv_operation);
  receives.add(receive);
  transport.end(Channel::offers, 0, terms(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(text_of([&] { receives.advance(); }), "") << "the reply has not been sent";
  }
  transport.end(Channel::replies, 0);
  EXPECT_EQ(text_of([&] { receives.advance(); }), of_sender);
  EXPECT_FALSE(receive.complete());
  EXPECT_NE(of_sender.find("message #5 from rank 4 to rank 7 differs"), std::string::npos)
      << of_sender;
}

TEST(Moves, SendTheNextPieceOnceAnEarlierOneIsSent) {
  ManualTransport transport;
  const messages::MessageGroup group{.rank = 0,
                                     .members = {4, 7},
                                     .pieces = {.bytes = 8, .window = 2, .of_parts = true},
                                     .network = &transport};
  std::array<float, 10> memory{1, 2, 3, 4, 5};
  auto* const data = reinterpret_cast<std::byte*>(memory.data());
  const Operation operation{.collective = Collective::all_gather,
                            .dtype = DType::f32,
                            .input = data,
                            .output = data,
                            .count = 5};
  const auto moves = messages::make_transfer(group, operation);
  moves->advance();
  // All three receives, and two of three sends.
  EXPECT_EQ(transport.begun(Channel::parts), 5U);
  transport.end(Channel::parts, 0, std::array<float, 2>{6, 7});
  transport.end(Channel::parts, 1, std::array<float, 2>{8, 9});
  transport.end(Channel::parts, 2, 10.0f);
  moves->advance();
  EXPECT_FALSE(moves->begun());
  transport.end(Channel::parts, 3);
  moves->advance();
  EXPECT_EQ(transport.begun(Channel::parts), 6U);
  EXPECT_TRUE(moves->begun());
  EXPECT_EQ(moves->partners(), std::vector<int>{1});
  transport.end(Channel::parts, 4);
  EXPECT_FALSE(moves->finished());
  transport.end(Channel::parts, 5);
  EXPECT_TRUE(moves->finished());
  EXPECT_EQ(memory, (std::array<float, 10>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

}  // namespace
}  // namespace lockstep::testing
