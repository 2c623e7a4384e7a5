#include <string>
#include <thread>

#include "tests/comm/control/relay.h"
#include "tests/launch/job_on_nodes.h"
#include "tests/matchers.h"

namespace lockstep::testing {
namespace {

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

TEST_F(AttackedNodes, RefuseAReplayAndKeepTheRanksTokenSecret) {
  count_ = 3;
  const Arguments words{"sh", "-c", "echo token=$LOCKSTEP_TOKEN"};
  start(0, 1, words);
  start_by_relay(words);
  const auto hello_bytes = header_bytes + sizeof(control::Hello) + control::FrameMac::bytes;
  while (relay_->passed().size() < hello_bytes) std::this_thread::yield();
  const auto replay = stranger(at_.addresses[0]);
  challenge(replay);
  say(replay, relay_->passed().substr(0, hello_bytes));
  EXPECT_THAT(heard(replay), HasSubstr("its token differs"));

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
    expect_all(1, "node 1 of 2 failed first: the MAC of a received frame is wrong");
  }
}

}  // namespace
}  // namespace lockstep::testing
