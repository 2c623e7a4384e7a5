#include "comm/control/address.h"

#include <arpa/inet.h>

#include <array>
#include <cstring>

#include "core/text.h"

namespace lockstep::inline v0_2::control {
namespace {

Address asked(int socket, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage found{};
  socklen_t length = sizeof found;
  if (ask(socket, reinterpret_cast<sockaddr*>(&found), &length) != 0) return {};
  return Address::of(reinterpret_cast<const sockaddr*>(&found)).value_or(Address());
}

}  // namespace

std::optional<Address> Address::of(const sockaddr* from) {
  Address address;
  if (from == nullptr) return std::nullopt;
  if (from->sa_family == AF_INET) {
    std::memcpy(&address.storage_, from, sizeof(sockaddr_in));
  } else if (from->sa_family == AF_INET6) {
    std::memcpy(&address.storage_, from, sizeof(sockaddr_in6));
  } else {
    return std::nullopt;
  }
  return address;
}

Address Address::local(int socket) { return asked(socket, ::getsockname); }

Address Address::peer(int socket) { return asked(socket, ::getpeername); }

bool Address::loopback() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&storage_.v6.sin6_addr);
  return ntohl(storage_.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool Address::link_local() const {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&storage_.v6.sin6_addr);
}

Address Address::with_port(std::uint16_t port) const {
  Address address = *this;
  if (family() == AF_INET6) {
    address.storage_.v6.sin6_port = htons(port);
  } else {
    address.storage_.v4.sin_port = htons(port);
  }
  return address;
}

socklen_t Address::length() const {
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::string Address::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = family() == AF_INET6 ? static_cast<const void*>(&storage_.v6.sin6_addr)
                                            : &storage_.v4.sin_addr;
  ::inet_ntop(family() == AF_INET6 ? AF_INET6 : AF_INET, number, text.data(), text.size());
  return text.data();
}

std::string Address::text() const {
  if (family() == AF_INET6) return detail::concat('[', host(), "]:", ntohs(storage_.v6.sin6_port));
  return detail::concat(host(), ':', ntohs(storage_.v4.sin_port));
}

}  // namespace lockstep::control
