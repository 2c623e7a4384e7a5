#pragma once

#include <functional>
#include <vector>

#include "comm/control/offer.h"

namespace lockstep::inline v0_2::control {

/// Returns the present offer of the rank that gathers. Called before each round of attempts to
/// connect.
/// Throws: CommError while there is none.
using OfferSource = std::function<Offer()>;

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
