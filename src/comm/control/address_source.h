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

}  // namespace lockstep::control
