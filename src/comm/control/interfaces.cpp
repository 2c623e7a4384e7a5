#include "comm/control/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;

}  // namespace

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
    std::string names;
    for (const auto& one : found) names += concat(names.empty() ? "" : ", ", one.name);
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

std::string interface_of(const Address& local) {
  try {
    for (const auto& one : interfaces()) {
      for (const auto& address : one.addresses) {
        if (address.same_host(local)) return one.name;
      }
    }
  } catch (const CommError&) {
    // Not a failure of the operation: the name is for a message only.
  }
  return "an unknown interface";
}

}  // namespace lockstep::control
