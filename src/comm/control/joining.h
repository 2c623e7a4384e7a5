#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/control/offer.h"

namespace lockstep::inline v0_2::control {

/// Returns the present offer of the rank that gathers. Called before each round of attempts to
/// connect.
/// Throws: CommError while there is none.
using OfferSource = std::function<Offer()>;

/// Where the rank that gathers listens, unless its environment says otherwise: PyTorch's port.
inline constexpr std::uint16_t default_port = 29500;

/// The offer of a rank 0 that listens on a known port, now or later. The name is resolved at each
/// call.
/// Throws, when called: CommError with the resolver's text while the name does not resolve.
OfferSource offer_at(const std::string& host, std::uint16_t port, const Token& token);

/// The side of all other ranks of the rendezvous with the rank that gathers. Connects to it by the
/// first of its addresses that answers, and returns when all ranks have joined. If the connection
/// ends before, connects again. offers: gets those of all ranks with Settings::offer, by rank.
/// Throws: TimeoutError naming the addresses and the error of each. CommError if all addresses
/// refuse an offer with Offer::listening, if the interface cannot be used, and with the failure
/// that ended the rendezvous for all ranks.
Member join(const OfferSource& source, const Settings& settings,
            std::vector<Offer>* offers = nullptr);
Member join(const Offer& offer, const Settings& settings, std::vector<Offer>* offers = nullptr);

}  // namespace lockstep::control
