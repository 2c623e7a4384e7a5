#include "core/variable.h"

#include <cstdlib>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

std::optional<std::string_view> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> integer_variable(const char* name, int least) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  const auto number = parse_number<int>(*text);
  if (!number || *number < least) {
    throw InvalidArgument(
        concat(name, ": got '", *text, "', expected a whole number of at least ", least));
  }
  return number;
}

}  // namespace lockstep::detail
