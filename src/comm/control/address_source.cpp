#include "comm/control/address_source.h"

#include <netdb.h>

#include <memory>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {

using detail::concat;

OfferSource offer_at(const std::string& host, std::uint16_t port, const Token& token) {
  return [=] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* first = nullptr;
    const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &first);
    if (code != 0) throw CommError(concat("the name '", host, "': ", ::gai_strerror(code)));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(first, ::freeaddrinfo);
    Offer offer{.token = token, .network = unknown_network};
    for (const auto* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      const auto address = Address::of(entry->ai_addr);
      if (!address || offer.count == offer.addresses.size()) continue;
      offer.addresses[offer.count++] = address->with_port(port);
    }
    return offer;
  };
}

}  // namespace lockstep::control
