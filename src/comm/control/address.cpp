#include "comm/control/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>

#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;

Address address_of(int socket, int (*ask)(int, sockaddr*, socklen_t*)) {
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
    const auto v6 = address.storage_.v6;
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      address = any(AF_INET).with_port(ntohs(v6.sin6_port));
      std::memcpy(&address.storage_.v4.sin_addr, v6.sin6_addr.s6_addr + 12, sizeof(in_addr));
    }
  } else {
    return std::nullopt;
  }
  return address;
}

Address Address::any(int family) {
  Address address;
  address.storage_.any.sa_family = static_cast<sa_family_t>(family);
  return address;
}

Address Address::local(int socket) { return address_of(socket, ::getsockname); }

Address Address::peer(int socket) { return address_of(socket, ::getpeername); }

bool Address::loopback() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&storage_.v6.sin6_addr);
  return ntohl(storage_.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool Address::link_local() const {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&storage_.v6.sin6_addr);
}

Address Address::with_port(std::uint16_t port) const {
  Address address = *this;
  auto& storage = address.storage_;
  (family() == AF_INET6 ? storage.v6.sin6_port : storage.v4.sin_port) = htons(port);
  return address;
}

std::uint16_t Address::port() const {
  return ntohs(family() == AF_INET6 ? storage_.v6.sin6_port : storage_.v4.sin_port);
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
  if (family() == AF_INET6) return concat('[', host(), "]:", port());
  return concat(host(), ':', port());
}

UnixAddress::UnixAddress(const std::string& name) {
  storage_.sun_family = AF_UNIX;
  const auto bytes = name.copy(storage_.sun_path + 1, sizeof storage_.sun_path - 1);
  length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

ucred peer_of(int socket) {
  ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t length = sizeof peer;
  ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

std::string process_text(pid_t pid) {
  if (pid == 0) return "a process of another pid namespace";
  const auto name = detail::read_process(pid).name;
  return concat("process ", pid, name.empty() ? "" : concat(" (", name, ")"));
}

detail::Descriptor listen_at(const Address& address, bool reuse) {
  detail::Descriptor made(
      ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  if (made && address.family() == AF_INET6)
    ::setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (made && reuse) ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (made && ::bind(made.get(), address.get(), address.length()) == 0 &&
      ::listen(made.get(), SOMAXCONN) == 0) {
    return made;
  }
  return {};
}

detail::Descriptor listen_anywhere(std::uint16_t port) {
  auto made = listen_at(Address::any(AF_INET6).with_port(port));
  return made ? std::move(made) : listen_at(Address::any(AF_INET).with_port(port));
}

std::uint16_t lasting_port() {
  std::random_device random;
  std::uniform_int_distribution<std::uint16_t> ports(10'000, 32'000);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto port = ports(random);
    if (listen_anywhere(port)) return port;
  }
  return Address::local(listen_anywhere().get()).port();
}

std::pair<std::string, std::optional<std::string>> divide_address(const std::string& text) {
  const auto colon = text.rfind(':');
  const bool has_port =
      colon != text.npos && colon > 0 && (text.find(':') == colon || text[colon - 1] == ']');
  auto host = has_port ? text.substr(0, colon) : text;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {host, has_port ? std::optional(text.substr(colon + 1)) : std::nullopt};
}

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw CommError(concat("control: cannot list network interfaces: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    auto known = std::ranges::find(found, entry->ifa_name, &Interface::name);
    if (known == found.end()) {
      found.push_back(
          {.name = entry->ifa_name, .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
      known = found.end() - 1;
    }
    const auto address = Address::of(entry->ifa_addr);
    if (address && !address->link_local()) known->addresses.push_back(*address);
  }
  return found;
}

std::vector<Interface> usable_interfaces(const std::string& name, std::string_view named_by) {
  auto found = interfaces();
  if (name.empty()) {
    std::erase_if(found, [](const auto& one) { return one.loopback || one.addresses.empty(); });
    return found;
  }
  const auto named = std::ranges::find(found, name, &Interface::name);
  if (named == found.end()) {
    const auto names = detail::joined(found, ", ", &Interface::name);
    throw CommError(concat(named_by, ": got '", name, "', ",
                           ::if_nametoindex(name.c_str()) != 0 ? "which is not up; " : "",
                           "expected one of: ", names.empty() ? "none is up here" : names));
  }
  if (named->addresses.empty()) {
    throw CommError(concat(named_by, ": got '", name,
                           "', which has no address; expected one with an IPv4 or IPv6 address "
                           "beyond its link"));
  }
  return {*named};
}

void check_interface(const std::string& name, std::string_view named_by) {
  try {
    (void)usable_interfaces(name, named_by);
  } catch (const CommError& error) {
    throw InvalidArgument(error.what());
  }
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const auto& interface : interfaces) {
    text += (text.empty() ? "" : ", ") + interface.name;
    for (const auto& address : interface.addresses) text += concat(" ", address.host());
  }
  return text.empty() ? "no interface but loopback: other hosts cannot reach this one" : text;
}

}  // namespace lockstep::control
