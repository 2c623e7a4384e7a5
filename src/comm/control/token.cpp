#include "comm/control/token.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {

using detail::concat;

Token random_token() {
  Token token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    throw CommError(concat("control: got no random token: ", std::strerror(errno)));
  return token;
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

std::string hexadecimal(const Token& token) {
  std::string text;
  for (const char byte : token) text += detail::hex(static_cast<unsigned char>(byte), 2);
  return text;
}

}  // namespace lockstep::control
