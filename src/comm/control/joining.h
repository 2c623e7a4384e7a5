#pragma once

#include "comm/control/offer.h"

namespace lockstep::inline v0_2::control {

/// The side of all other ranks of the rendezvous of control connections. Connects to rank 0 by the
/// first of its addresses that answers, and returns when all ranks have joined. If the connection
/// ends before, connects again.
/// Throws: TimeoutError naming rank 0's addresses and the error of each. CommError if all addresses
/// refuse an offer with Offer::listening, if the interface cannot be used, and with the failure
/// that ended the rendezvous for all ranks.
Member join(const Offer& offer, const Settings& settings);

}  // namespace lockstep::control
