#pragma once

#include <deque>

#include "tests/launch/launched.h"

namespace lockstep::testing {

/// Launchers of one job on this host, as if each was on a host of its own.
class Nodes : public ::testing::Test {
 protected:
  Launched& start(int node, int ranks, const Words& words, const Words& before = {}) {
    const Words place{"--nnodes", std::to_string(count_), "--node-rank", std::to_string(node),
                      "--master", master_ + ":" + port_,  "-n",          std::to_string(ranks)};
    return launchers_.emplace_back(joined(before, {run_command(joined(place, {words}))}),
                                   variables_);
  }
  /// Starts node 0 with two ranks and all others with one, and waits until every rank has printed
  /// "pid".
  void start_all(const Words& words) {
    for (int node = 0; node < count_; ++node) start(node, node == 0 ? 2 : 1, words);
    for (int node = 0; node < count_; ++node)
      launcher(node).await_output("pid ", node == 0 ? 2 : 1);
  }
  Launched& launcher(int node) { return launchers_[static_cast<std::size_t>(node)]; }
  std::vector<Ended> wait() {
    std::vector<Ended> all;
    for (auto& one : launchers_) all.push_back(one.wait());
    EXPECT_TRUE(await_all_ended(std::chrono::seconds(10)));
    return all;
  }
  /// Waits, and expects that every launcher has ended so and said that.
  void expect_all(int code, const std::string& said = "") {
    for (const auto& one : wait()) {
      EXPECT_EQ(one.code, code) << one.err;
      EXPECT_THAT(one.err, HasSubstr(said));
    }
  }

  int count_ = 2;
  std::string master_ = "127.0.0.1";
  std::string port_ = free_port();
  Launched::Variables variables_{{"LOCKSTEP_HEARTBEAT", "5"}};
  std::deque<Launched> launchers_;
};

/// Options of a job that may restart so many times.
inline Words restarts(int most) {
  return {"--max-restarts", std::to_string(most), "--restart-delay", "0"};
}
inline Words shell(const std::string& script) { return {"sh", "-c", script}; }

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
inline const auto sleep_on = shell("echo pid $$; exec sleep 100");

}  // namespace lockstep::testing
