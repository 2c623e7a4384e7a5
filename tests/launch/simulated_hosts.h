#pragma once

#include <unistd.h>

#include "tests/launch/launched.h"

namespace lockstep::testing {

/// Hosts that network namespaces simulate, joined by a bridge. Host k has the name
/// "lockstep<pid>-k" and the address 10.79.0.<k+1>. Needs root.
class SimulatedHosts {
 public:
  explicit SimulatedHosts(int count) {
    made_ = add(hub_) && ip("-n " + hub_ + " link add bridge0 type bridge") &&
            ip("-n " + hub_ + " link set bridge0 up");
    for (int k = 0; made_ && k < count; ++k) {
      const auto host = name(k), port = port_of(k);
      made_ =
          add(host) &&
          ip("link add link0 netns " + host + " type veth peer name " + port + " netns " + hub_) &&
          ip("-n " + hub_ + " link set " + port + " master bridge0 up") &&
          ip("-n " + host + " address add " + address(k) + "/24 dev link0") &&
          ip("-n " + host + " link set link0 up") && ip("-n " + host + " link set lo up");
    }
  }
  ~SimulatedHosts() {
    for (const auto& one : namespaces_) ip("netns del " + one);
  }
  SimulatedHosts(const SimulatedHosts&) = delete;
  SimulatedHosts& operator=(const SimulatedHosts&) = delete;

  /// Whether this system can have them.
  bool made() const { return made_; }
  std::string name(int host) const { return prefix_ + std::to_string(host); }
  static std::string address(int host) { return "10.79.0." + std::to_string(host + 1); }
  /// The words before a command that runs on the host.
  std::vector<std::string> enter(int host) const {
    return {"/bin/sh", "-c",
            "exec ip netns exec \"$0\" unshare --uts sh -c 'hostname \"$0\"; exec \"$@\"' \"$0\" "
            "\"$@\"",
            name(host)};
  }
  /// Cuts the host's link without a message to either side.
  void cut(int host) const { ip("-n " + hub_ + " link set " + port_of(host) + " down"); }
  /// Cuts the links between hosts for which this was called.
  void isolate(int host) const {
    ip("-n " + hub_ + " link set " + port_of(host) + " type bridge_slave isolated on");
  }
  /// Ends a cut.
  void join(int host) const { ip("-n " + hub_ + " link set " + port_of(host) + " up"); }

 private:
  static bool ip(const std::string& words) {
    return std::system(("ip " + words + " 2>/dev/null").c_str()) == 0;
  }
  static std::string port_of(int host) { return "port" + std::to_string(host); }
  bool add(const std::string& one) {
    if (!ip("netns add " + one)) return false;
    namespaces_.push_back(one);
    return true;
  }

  std::string prefix_ = "lockstep" + std::to_string(getpid()) + "-";
  std::string hub_ = prefix_ + "hub";
  std::vector<std::string> namespaces_;
  bool made_ = false;
};

/// Four simulated hosts, with a command in place of ssh that enters them. Each has a /dev/shm of
/// its own.
class SshHosts : public SimulatedHosts {
 public:
  SshHosts() : SimulatedHosts(4) {
    write_program(ssh(),
                  concat("#!/bin/sh\nhost=$1; shift; cd /; echo $host $$ >>", ssh(), ".started\n",
                         "exec ip netns exec $host unshare --uts --mount sh -c \"hostname $host; ",
                         "mount -t tmpfs none /dev/shm; $*\"\n"));
  }
  std::string ssh() const { return (folder_ / "ssh").string(); }
  /// The hosts and processes that the command has started, since the last call.
  std::string started() const {
    const auto text = content(ssh() + ".started");
    std::filesystem::remove(ssh() + ".started");
    return text;
  }
  /// The first three hosts, with 1, 2 and 1 ranks.
  std::string list() const { return concat(address(0), ":1,", name(1), ":2,", name(2), ":1"); }
  /// `lockstep run` on the first host.
  Words command(const Words& words) const {
    return joined(enter(0), {run_command({"--ssh", ssh()}), words});
  }

 private:
  TemporaryFolder folder_;
};

/// `lockstep run --hosts`.
class HostsBySsh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << "no network namespace can be made here (not root?)";
  }
  /// Runs `lockstep run` on the first host to its end. before: words before the command.
  Ended run(const Words& words, const Words& before = {}) const {
    return Launched(joined(before, {hosts_.command(words)})).wait();
  }

  TemporaryFolder folder_;
  SshHosts hosts_;
};

}  // namespace lockstep::testing
