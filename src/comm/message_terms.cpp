#include "comm/message_terms.h"

#include "core/text.h"

namespace lockstep::inline v0_2::detail {
namespace {

std::string describe(const MessageTerms& terms) {
  return concat(terms.count, " elements of ", name(terms.dtype), " with tag ", terms.tag);
}

}  // namespace

std::string describe_difference(std::uint64_t number, int from, int to,
                                const MessageTerms& expected, const MessageTerms& got) {
  return concat("message #", number, " from rank ", from, " to rank ", to,
                " differs: the receiver expected ", describe(expected), ", got ", describe(got));
}

}  // namespace lockstep::detail
