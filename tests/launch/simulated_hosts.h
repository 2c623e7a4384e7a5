#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

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

}  // namespace lockstep::testing
