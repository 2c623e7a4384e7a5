#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/control/relay.h"
#include "tests/launch/job_on_nodes.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Two launchers, of which node 1 joins by a host that an attacker has.
class AttackedNodes : public Nodes {
 protected:
  AttackedNodes() {
    at_.addresses[0] = address_of(port_);
    relay_.emplace(at_.addresses[0]);
  }

  static control::Address address_of(const std::string& port) {
    return control::Address::any(AF_INET).with_port(static_cast<std::uint16_t>(std::stoi(port)));
  }
  void start_by_relay(const Arguments& words) {
    const auto port = std::exchange(port_, std::to_string(relay_->address().port()));
    start(1, 1, words);
    port_ = port;
  }

  control::Offer at_{.count = 1};  ///< node 0, with no token
  std::optional<Relay> relay_;
};

TEST_F(AttackedNodes, AreNotHarmedByStrangers) {
  const OpenFiles limit(4096);
  count_ = 3;
  const Arguments words{"sh", "-c", "echo token=$LOCKSTEP_TOKEN"};
  start(0, 1, words);
  start_by_relay(words);
  const auto hello_bytes = header_bytes + sizeof(control::Hello) + control::FrameMac::bytes;
  while (relay_->passed().size() < hello_bytes) std::this_thread::yield();

  const auto silent = stranger(at_.addresses[0]);
  const auto half = stranger(at_.addresses[0]);
  control::Settings node_2{.purpose = "run", .rank = 2, .size = 3};
  say(half, hello(half, at_, node_2).substr(0, 40));
  const auto replay = stranger(at_.addresses[0]);
  challenge(replay);
  say(replay, relay_->passed().substr(0, hello_bytes));
  EXPECT_THAT(heard(replay), HasSubstr("its token differs"));
  const auto other = stranger(at_.addresses[0]);
  auto wrong = at_;
  wrong.token[0] = 1;
  say(other, hello(other, wrong, node_2));
  EXPECT_THAT(heard(other), HasSubstr("its token differs"));
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::string bytes(1 + random() % 2000, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    say(stranger(at_.addresses[0]), bytes);
  }
  std::vector<detail::Descriptor> flood;
  for (int i = 0; i < 1000; ++i) flood.push_back(stranger(at_.addresses[0]));

  start(2, 1, words);
  for (const auto& one : wait()) {
    EXPECT_EQ(one.code, 0) << one.err;
    const auto at = one.out.find("token=");
    ASSERT_NE(at, std::string::npos) << one.out;
    const auto token = first_line(one.out.substr(at + 6));
    EXPECT_EQ(token.size(), 64u);
    EXPECT_THAT(relay_->returned(), Not(HasSubstr(token)));
  }
}

TEST_F(AttackedNodes, EndWithTheCause) {
  for (const auto attack : {Relay::Attack::change, Relay::Attack::repeat}) {
    launchers_.clear();
    port_ = free_port();
    relay_.emplace(address_of(port_));
    start(0, 1, sleep_on);
    start_by_relay(sleep_on);
    for (int node = 0; node < 2; ++node) launcher(node).await_output("pid ");
    relay_->attack(attack);
    for (const auto& one : wait()) {
      EXPECT_EQ(one.code, 1);
      EXPECT_THAT(one.err,
                  HasSubstr("node 1 of 2 failed first: the MAC of a received frame is wrong"));
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
