#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::control {

/// An IPv4 or IPv6 address with a port. It may be copied as bytes.
class Address {
 public:
  Address() = default;
  /// None of another family.
  static std::optional<Address> of(const sockaddr* from);
  /// This end of a socket, and the other.
  static Address local(int socket);
  static Address peer(int socket);

  int family() const { return storage_.any.sa_family; }
  bool loopback() const;
  /// Of one link only, where it means nothing without the interface's number on that host.
  bool link_local() const;
  Address with_port(std::uint16_t port) const;

  const sockaddr* get() const { return &storage_.any; }
  socklen_t length() const;

  /// "10.0.0.1" or "fd00::1".
  std::string host() const;
  /// "10.0.0.1:4711" or "[fd00::1]:4711".
  std::string text() const;

  /// Whether the hosts are the same, whatever the ports.
  bool same_host(const Address& other) const { return host() == other.host(); }

 private:
  union Storage {
    sockaddr_in6 v6;
    sockaddr_in v4;
    sockaddr any;
  };
  Storage storage_{};
};

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
