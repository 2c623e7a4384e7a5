#pragma once

#include <cstdint>
#include <string>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The properties in which a send and the recv that takes it must agree.
struct MessageTerms {
  DType dtype;
  std::uint64_t count;
  std::uint32_t tag;
  bool operator==(const MessageTerms&) const = default;
};

inline MessageTerms terms_of(const Operation& operation) {
  return {.dtype = operation.dtype, .count = operation.count, .tag = operation.tag};
}

/// The sentence about a message, between world ranks, whose two ends do not agree.
std::string describe_difference(std::uint64_t number, int from, int to,
                                const MessageTerms& expected, const MessageTerms& got);

}  // namespace lockstep::detail
