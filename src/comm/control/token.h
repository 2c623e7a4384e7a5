#pragma once

#include <string>

#include "comm/control/offer.h"

namespace lockstep::inline v0_2::control {

/// Throws: CommError if the system gives no random bytes.
Token random_token();

/// The secret of a world whose ranks have no other way to share one: the first bytes of the file
/// that LOCKSTEP_TOKEN_FILE names; all zeros if it is unset.
/// Throws: InvalidArgument if the file cannot be read, has fewer bytes than a token, or is readable
/// by other users.
Token token_of_file();

/// The token as 64 hexadecimal digits, and the token of such a text.
/// Throws: InvalidArgument naming the variable for another text.
Token parse_token(const std::string& variable, const std::string& text);
std::string hexadecimal(const Token& token);

}  // namespace lockstep::control
