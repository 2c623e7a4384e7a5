#include "comm/control/handshake.h"

#include <utility>

#include "comm/control/control.h"
#include "tests/comm/control/relay.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

using control::FrameReader;
using control::Kind;

constexpr auto another_token = "refuses: it belongs to another world: its token differs";
constexpr auto wrong_mac = "the MAC of a received frame is wrong";

/// Rank 0 of two, which waits for the other until the test ends.
class Handshakes : public ::testing::Test, protected Waiting {
 protected:
  Handshakes() : Waiting(rank_of(0, 2)) {}
  /// Rank 0's answer to these bytes after its challenge.
  std::string answer(const detail::Descriptor& socket, std::string_view bytes) const {
    say(socket, bytes);
    return heard(socket);
  }
  void TearDown() override {
    EXPECT_EQ(join(offer, rank_of(1, 2)).rank, 0) << "nothing harmed the world";
    EXPECT_EQ(members.get().size(), 1u);
  }
};

TEST_F(Handshakes, RefuseTheProofOfAnotherRankPurposeOrOtherValues) {
  for (const auto& [what, at] : std::initializer_list<std::pair<const char*, std::size_t>>{
           {"nonce", offsetof(control::Hello, nonce)},
           {"rank", offsetof(control::Hello, rank)},
           {"size", offsetof(control::Hello, size)},
           {"host", offsetof(control::Hello, host)}}) {
    const auto socket = stranger(offer.addresses[0]);
    auto bytes = hello(socket, offer, rank_of(1, 2));
    auto& byte = bytes[header_bytes + at];
    byte = static_cast<char>(byte ^ 2);
    EXPECT_THAT(answer(socket, bytes), HasSubstr(another_token)) << what;
  }
  auto settings = rank_of(1, 2);
  settings.purpose = "tcp";
  EXPECT_THAT(thrown([&] { join(offer, settings); }), HasSubstr(another_token));
  auto of_rank_1 = offer;
  of_rank_1.rank = 1;
  EXPECT_THAT(thrown([&] { join(of_rank_1, rank_of(1, 2)); }),
              AllOf(HasSubstr(another_token),
                    HasSubstr("expected the same LOCKSTEP_TOKEN_FILE on all hosts, or none")));
}

/// A program without the token that listens in rank 0's place, and serves each connection. Returns
/// the error of the rank that joins.
std::string error_at_a_listener(
    const std::function<void(const detail::Descriptor&, const control::Offer&)>& serve) {
  const detail::Descriptor listening = control::listen_at(control::Address::any(AF_INET));
  control::Offer offer{.token = control::random_bytes(), .listening = true, .count = 1};
  offer.addresses[0] = control::Address::local(listening.get());
  auto error = std::async(std::launch::async,
                          [&] { return thrown([&] { join(offer, rank_of(1, 2, "b")); }); });
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (error.wait_for(0s) != std::future_status::ready &&
         std::chrono::steady_clock::now() < until) {
    const detail::Descriptor socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) serve(socket, offer);
    std::this_thread::sleep_for(10ms);
  }
  return error.get();
}

/// The same of a program that answers the first hello with what `answer` makes of it.
std::string error_at_a_false_rank_0(const std::function<std::string(const Answer&)>& answer) {
  return error_at_a_listener([&](const detail::Descriptor& socket, const control::Offer& offer) {
    const auto got = challenged(socket, offer);
    EXPECT_EQ(got.bytes.find(std::string(offer.token.data(), offer.token.size())),
              std::string::npos)
        << "the token is not sent";
    say(socket, answer(got));
  });
}

TEST(FalseRankZero, IsRefused) {
  const control::Frame yes{.kind = Kind::accepted,
                           .payload = control::bytes_of(control::Greeting{.heartbeat = 2000})};
  EXPECT_THAT(error_at_a_false_rank_0([&](const Answer&) { return control::encode(yes); }),
              AllOf(HasSubstr("another program answered"), HasSubstr(wrong_mac)));
  EXPECT_THAT(error_at_a_false_rank_0([](const Answer& got) { return got.bytes; }),
              HasSubstr(wrong_mac))
      << "its own hello";
  EXPECT_THAT(error_at_a_false_rank_0([&](const Answer& got) {
                auto own = got.macs.to_gatherer;
                return control::encode(yes, &own);
              }),
              HasSubstr(wrong_mac))
      << "the key of the other direction";
}

TEST(FalseRankZero, CannotEndTheWorldByAFailure) {
  EXPECT_THAT(error_at_a_listener([](const detail::Descriptor& socket, const control::Offer&) {
                say(socket, control::encode(control::failure_frame({.text = "by a stranger"})));
              }),
              AllOf(HasSubstr("another program answered"), Not(HasSubstr("by a stranger"))));
}

TEST(FrameMacs, RefuseFramesInAnyOtherOrderOrForm) {
  const auto macs = control::macs_of(control::random_bytes(), {.purpose = "p"});
  auto sending = macs.to_joiner;
  std::vector<std::string> frames;
  for (const char* text : {"first", "second", "third", ""})
    frames.push_back(control::encode({.kind = Kind::question, .payload = text}, &sending));
  const auto read = [&](const control::FrameMac& mac, std::initializer_list<std::string> all) {
    FrameReader reader;
    reader.check(mac);
    std::string texts;
    const auto error = thrown([&] {
      for (const auto& bytes : all) {
        reader.add(bytes);
        while (const auto frame = reader.next()) texts += frame->payload + ' ';
      }
    });
    EXPECT_THAT(thrown([&] { texts += error == "nothing" ? "" : reader.next()->payload; }),
                error == "nothing" ? "nothing" : error)
        << "a broken connection stays so";
    return texts + error.substr(0, std::string_view(wrong_mac).size());
  };
  const auto changed = [&](std::size_t at) {
    auto bytes = frames[1];
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return bytes;
  };
  const auto& mac = macs.to_joiner;
  EXPECT_EQ(read(mac, {frames[0], frames[1], frames[2], frames[3]}), "first second third  nothing");
  const auto no = control::encode({.kind = Kind::refused, .payload = "no"});
  EXPECT_EQ(read(mac, {no}), "no nothing");
  // Repeated; left out; of another kind, content and MAC; without a MAC.
  for (const auto& second : {frames[0], frames[2], changed(4), changed(header_bytes),
                             changed(frames[1].size() - 1), no}) {
    EXPECT_EQ(read(mac, {frames[0], second, frames[1]}), std::string("first ") + wrong_mac);
  }
  EXPECT_EQ(read(mac, {frames[1], frames[0]}), wrong_mac);
  EXPECT_EQ(read(mac, {control::encode({.kind = Kind::heartbeat})}), wrong_mac) << "without a MAC";
  EXPECT_EQ(read(macs.to_gatherer, {frames[0]}), wrong_mac) << "sent back";
}

TEST(Handshake, SendsNoToken) {
  Waiting rank_0(rank_of(0, 2));
  const Relay relay(rank_0.offer.addresses[0]);
  auto offer = rank_0.offer;
  offer.count = 1;
  offer.addresses[0] = relay.address();
  join(offer, rank_of(1, 2, "b"));
  EXPECT_EQ(rank_0.members.get().size(), 1u);
  EXPECT_THAT(relay.passed() + relay.returned(),
              Not(HasSubstr({offer.token.data(), offer.token.size()})));
}

TEST(FrameMacs, LeaveRoomForTheLongestPayloads) {
  auto mac = control::macs_of({}, {.purpose = "p"}).to_joiner;
  for (const auto kind : {Kind::failed, Kind::answer}) {
    FrameReader reader;
    reader.check(mac);
    auto sending = mac;
    reader.add(control::encode({.kind = kind, .payload = std::string(70'000, 'x')}, &sending));
    EXPECT_EQ(reader.next().value().payload.size(),
              kind == Kind::answer ? control::longest_status_payload : control::longest_payload);
  }
}

TEST(DerivedTokens, DifferForEachUseAndToken) {
  const auto token = control::random_bytes();
  EXPECT_EQ(control::derived_token(token, "a"), control::derived_token(token, "a"));
  EXPECT_NE(control::derived_token(token, "a"), control::derived_token(token, "b"));
  EXPECT_NE(control::derived_token(token, "a"), control::derived_token({}, "a"));
  EXPECT_NE(control::derived_token(token, "a"), token);
}

}  // namespace
}  // namespace lockstep::testing
