#include "comm/messages/message_protocol.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
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
#include "comm/messages/message_communicator.h"
#include "comm/messages/message_rank_context.h"
#include "comm/messages/network.h"
#include "comm/messages/transfer.h"

// send() and recv() over a network whose messages end in the order that a test chooses. The
// conformance suite and tests/simulation exchange messages that are right.

namespace lockstep::testing {
namespace {

using messages::Channel;

/// Keeps the messages that were begun. Notices of the world are complete at once.
class ManualNetwork final : public messages::Network {
 public:
  explicit ManualNetwork(int rank = 0) {
    rank_ = rank;
    size_ = 8;
    last_tag_ = 1000;
  }

  struct Message {
    std::byte* data;
    std::size_t bytes;
    Done done;
  };

  void send(const std::byte* data, std::size_t bytes, int, int tag, Done done) override {
    if (tag == messages::notice_tag) return done(bytes);
    begun_[tag].push_back({const_cast<std::byte*>(data), bytes, std::move(done)});
  }
  void receive(std::byte* data, std::size_t bytes, int, int tag, Done done) override {
    begun_[tag].push_back({data, bytes, std::move(done)});
  }
  std::string_view name() const override { return "manual"; }
  bool progress() override { return false; }
  void stop() noexcept override {}
  bool ends_together() const override { return false; }

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

/// The group of ranks 0 and 7 on one of them.
class Member {
 public:
  /// rank: in the group.
  explicit Member(int rank) {
    auto network = std::make_unique<ManualNetwork>(members_[static_cast<std::size_t>(rank)]);
    network_ = network.get();
    auto context = std::make_shared<messages::MessageRankContext>(
        messages::Options{.timeout = std::chrono::seconds(20)}, std::move(network));
    group_ = std::make_shared<messages::MessageCommunicator>(std::move(context), members_, rank, 0);
  }

  /// The group drops what is complete, or has failed, in its next poll.
  ~Member() {
    try {
      poll();
    } catch (const CommError&) {
    }
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  ManualNetwork& network() { return *network_; }
  /// Of floats between this member and the other one.
  Work recv(std::uint32_t tag, std::size_t count = 3, Issue issue = {}) {
    return group_->recv(memory_.data(), count, DType::f32, 1 - group_->rank(), tag,
                        std::move(issue));
  }
  Work send(std::uint32_t tag, std::size_t count = 3, Issue issue = {}) {
    return group_->send(memory_.data(), count, DType::f32, 1 - group_->rank(), tag,
                        std::move(issue));
  }
  void poll() { group_->make_progress(); }

 private:
  std::vector<int> members_{0, 7};
  ManualNetwork* network_;
  std::shared_ptr<messages::MessageCommunicator> group_;
  std::array<float, 3> memory_{};
};

detail::MessageTerms terms(std::uint32_t tag, std::uint64_t count = 3) {
  return {.dtype = DType::f32, .count = count, .tag = tag};
}

TEST(MessageProtocol, AReceiverTakesMessagesOnlyForAnOpenReceive) {
  Member member(0);
  auto& network = member.network();
  EXPECT_EQ(network.begun(Channel::offers), 0U);
  auto first = member.recv(1);
  EXPECT_TRUE(first.cancel());
  EXPECT_FALSE(first.cancel());
  network.end(Channel::offers, 0, terms(1));
  member.poll();
  EXPECT_EQ(network.begun(Channel::replies), 0U);
  auto second = member.recv(1);
  EXPECT_EQ(network.begun(Channel::replies), 1U);
  EXPECT_FALSE(second.cancel());
  EXPECT_EQ(network.begun(Channel::offers), 1U);
  EXPECT_EQ(second.source(), 1);
  network.end(Channel::replies, 0);
  EXPECT_FALSE(second.ready());
  network.end(Channel::payloads, 0);
  EXPECT_TRUE(second.ready());
}

TEST(MessageProtocol, AReceiveInOrderTakesAnyTagAndComparesIt) {
  Member member(0);
  auto receive = member.recv(1, 3, {.in_order = true});
  member.network().end(Channel::offers, 0, terms(2));
  member.poll();
  member.network().end(Channel::replies, 0);
  EXPECT_THROW(receive.ready(), CommError);
}

TEST(MessageProtocol, AnAnnouncementHasTheCountOfItsOperationAndNoPayload) {
  Member member(0);
  const Operation whole{.collective = Collective::send, .dtype = DType::f32, .count = 3, .peer = 1};
  auto send = member.send(1, 0, {.part_of = std::make_shared<const Operation>(whole)});
  EXPECT_EQ(member.network().begun(Channel::payloads), 0U);
  auto expected = terms(1);
  expected.is_announcement = true;
  member.network().end(Channel::replies, 0, messages::Reply{.terms = expected, .number = 1});
  member.network().end(Channel::offers, 0);
  EXPECT_TRUE(send.ready());
}

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& mismatch) {
    EXPECT_EQ(mismatch.rank(), 7) << "the receiver is at fault";
    return mismatch.what();
  }
  return {};
}

TEST(MessageProtocol, BothEndsFindAMismatchOnceTheirOwnTermsHaveBeenSent) {
  Member sender(0), receiver(1);
  auto send = sender.send(1);
  sender.network().end(Channel::replies, 0, messages::Reply{.terms = terms(1, 2), .number = 1});
  EXPECT_EQ(text_of([&] { send.ready(); }), "") << "the offer has not been sent";
  sender.network().end(Channel::offers, 0);
  const auto of_sender = text_of([&] { send.ready(); });

  auto recv = receiver.recv(1, 2);
  receiver.network().end(Channel::offers, 0, terms(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(text_of([&] { recv.ready(); }), "") << "the reply has not been sent";
  }
  receiver.network().end(Channel::replies, 0);
  const auto of_receiver = text_of([&] { recv.ready(); });
  const std::string same =
      "message #1 from rank 0 to rank 7 differs: the receiver expected 2 elements of float32 with "
      "tag 1, got 3 elements of float32 with tag 1";
  EXPECT_NE(of_sender.find(same), std::string::npos) << of_sender;
  EXPECT_NE(of_receiver.find(same), std::string::npos) << of_receiver;
}

TEST(Moves, SendTheNextPieceOnceAnEarlierOneIsSent) {
  ManualNetwork transport;
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
