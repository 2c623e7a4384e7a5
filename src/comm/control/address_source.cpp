#include "comm/control/address_source.h"

#include <netdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>

#include "core/environment.h"
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

Token token_of_file() {
  constexpr auto name = "LOCKSTEP_TOKEN_FILE";
  const std::string path(detail::variable(name).value_or(""));
  Token token{};
  if (path.empty()) return token;
  struct stat status {};
  std::ifstream file(path, std::ios::binary);
  const bool read = ::stat(path.c_str(), &status) == 0 && file.read(token.data(), token.size());
  if (!read || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw InvalidArgument(concat(name, ": got '", path,
                                 read ? "', which other users can read; expected mode 0600"
                                      : concat("'; expected a file of at least ", token.size(),
                                               " bytes; make it by: head -c 32 /dev/urandom")));
  }
  return token;
}

Token parse_token(const std::string& variable, const std::string& text) {
  Token token{};
  const char* next = text.data();
  for (char& byte : token) {
    std::uint8_t value = 0;
    const bool whole = text.size() == 2 * token.size() &&
                       std::from_chars(next, next + 2, value, 16).ptr == next + 2;
    if (!whole) {
      throw InvalidArgument(concat(variable, ": expected ", 2 * token.size(),
                                   " hexadecimal digits, got ", text.size(), " characters"));
    }
    byte = static_cast<char>(value);
    next += 2;
  }
  return token;
}

}  // namespace lockstep::control
