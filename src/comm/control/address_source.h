#pragma once

#include <cstdint>
#include <string>

#include "comm/control/joining.h"
#include "comm/control/offer.h"

namespace lockstep::inline v0_2::control {

/// The offer of a rank 0 that listens on a known port, now or later. The name is resolved at each
/// call.
/// Throws, when called: CommError with the resolver's text while the name does not resolve.
OfferSource offer_at(const std::string& host, std::uint16_t port, const Token& token);

/// The secret of a world whose ranks have no other way to share one: the first bytes of the file
/// that LOCKSTEP_TOKEN_FILE names; all zeros if it is unset.
/// Throws: InvalidArgument if the file cannot be read, has fewer bytes than a token, or is readable
/// by other users.
Token token_of_file();

/// The token that is written as 64 hexadecimal digits.
/// Throws: InvalidArgument naming the variable for another text.
Token parse_token(const std::string& variable, const std::string& text);

}  // namespace lockstep::control
