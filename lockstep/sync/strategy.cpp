#include "lockstep/sync/strategy.h"

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/sync/all_reduce.h"

namespace lockstep {

Strategy parse_strategy(std::string_view text) {
  const auto name = text.substr(0, text.find(':'));
  if (name != "fp32") {
    throw InvalidArgument(detail::concat("strategy: got \"", text, "\", expected one of: fp32"));
  }
  if (name != text) {
    throw InvalidArgument(
        detail::concat("strategy: got \"", text, "\", expected fp32 without options"));
  }
  return AllReduce{};
}

}  // namespace lockstep
