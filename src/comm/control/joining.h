#pragma once

#include "comm/control/offer.h"

namespace lockstep::inline v0_2::control {

/// The side of every rank but 0 of the ranks' meeting: connects to rank 0 by the first of its
/// addresses that answers, and returns when all ranks are here. Throws: TimeoutError naming rank
/// 0's addresses and what became of each; CommError when all refuse, when the interface cannot be
/// used, and with what ended the meeting for all.
Member join(const Offer& offer, const Settings& settings);

}  // namespace lockstep::control
