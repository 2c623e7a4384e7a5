#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/control/address.h"

namespace lockstep::inline v0_2::control {

/// A network interface that is up, with those of its addresses that mean the same on every host.
struct Interface {
  std::string name;
  bool loopback = false;
  std::vector<Address> addresses = {};
};

/// All that are up, in the order in which the kernel lists them.
std::vector<Interface> interfaces();

/// The interfaces by which hosts may be reached: the one of that name, else all but loopback.
/// Throws: CommError when there is none of that name, or it has no address or is not up, with who
/// named it.
std::vector<Interface> usable_interfaces(const std::string& name,
                                         std::string_view named_by = "LOCKSTEP_INTERFACE");

/// Checks an interface name that a user gave. Throws: InvalidArgument with the message of
/// usable_interfaces().
void check_interface(const std::string& name, std::string_view named_by);

/// For people: "eth0 10.0.0.1 fd00::1, eth1 10.1.0.1".
std::string describe(const std::vector<Interface>& interfaces);

/// The interface that an address of this host belongs to, for messages: "eth0".
std::string interface_of(const Address& local);

}  // namespace lockstep::control
