#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/system/process.h"

namespace lockstep::inline v0_2::control {

/// An IPv4 or IPv6 address with a port. Trivially copyable.
class Address {
 public:
  Address() = default;
  /// The address; nullopt for another family. An IPv4 address in IPv6 form is an IPv4 address.
  static std::optional<Address> of(const sockaddr* from);
  /// All addresses of this host. IPv6 includes IPv4.
  static Address any(int family);
  /// The local and the remote address of a socket.
  static Address local(int socket);
  static Address peer(int socket);

  bool operator==(const Address& other) const {
    return std::memcmp(&storage_, &other.storage_, sizeof storage_) == 0;
  }
  int family() const { return storage_.any.sa_family; }
  bool loopback() const;
  /// Whether it is a link-local address, which other hosts cannot use without an interface number.
  bool link_local() const;
  Address with_port(std::uint16_t port) const;
  std::uint16_t port() const;

  const sockaddr* get() const { return &storage_.any; }
  socklen_t length() const;

  /// "10.0.0.1" or "fd00::1".
  std::string host() const;
  /// "10.0.0.1:4711" or "[fd00::1]:4711".
  std::string text() const;

 private:
  union Storage {
    sockaddr_in6 v6;
    sockaddr_in v4;
    sockaddr any;
  };
  Storage storage_{};
};

/// The address of this name in the abstract namespace of unix sockets: it ends with its socket.
class UnixAddress {
 public:
  explicit UnixAddress(const std::string& name);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_un storage_{};
  socklen_t length_;
};

/// Credentials of the process at the other end of a connected unix socket. pid is 0 if it is in
/// another pid namespace.
ucred peer_of(int socket);
/// The process with the pid of peer_of(), for error texts: "process 77 (train)".
std::string process_text(pid_t pid);

/// A non-blocking socket that listens at the address; of Address::any(AF_INET6), for IPv4, too.
/// With `reuse`, connections of an earlier socket that wait for their end do not occupy the port.
/// Empty, with errno, if the system refuses.
detail::Descriptor listen_at(const Address& address, bool reuse = false);

/// The same at a port of all addresses: IPv6 with IPv4, else IPv4. 0: a free port.
detail::Descriptor listen_anywhere(std::uint16_t port = 0);

/// A free port below 32768. The system gives its outgoing connections ports from there on, unless
/// it has another range, and one of them could take a port before a process listens on it.
std::uint16_t lasting_port();

/// Divides "HOST:PORT" or "[ADDRESS]:PORT". A host may be without a port.
std::pair<std::string, std::optional<std::string>> divide_address(const std::string& text);

/// A network interface that is up, with its addresses except link-local ones.
struct Interface {
  std::string name;
  bool loopback = false;
  std::vector<Address> addresses = {};
};

/// All interfaces that are up, in the order of the kernel.
std::vector<Interface> interfaces();

/// The interfaces for connections between hosts: the one with this name; for an empty name, all
/// except loopback. named_by is the option or variable with the name, for error texts.
/// Throws: CommError if there is no interface with this name, if it is not up, or if it has no
/// address.
std::vector<Interface> usable_interfaces(const std::string& name,
                                         std::string_view named_by = "LOCKSTEP_INTERFACE");

/// Checks an interface name of the user.
/// Throws: InvalidArgument with the text of usable_interfaces().
void check_interface(const std::string& name, std::string_view named_by);

/// A text such as "eth0 10.0.0.1 fd00::1, eth1 10.1.0.1".
std::string describe(const std::vector<Interface>& interfaces);

}  // namespace lockstep::control
