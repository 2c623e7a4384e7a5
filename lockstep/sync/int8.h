#pragma once

#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// The mean over ranks of gradients that travel as 8-bit codes, "int8": a scale for every 512
/// elements. Each rank sums a part of all ranks' decoded gradients in rank order, and its mean
/// travels as codes again. Ranks that share memory do the same, to the bit, in place: codes stay in
/// the processor, and are counted as if they travelled. With error feedback what a rank's own codes
/// did not say is added to its next gradient: residual ← (gradient + residual) − decoded.
/// NaN and Inf make every rank raise the same InvalidArgument; of gradients that are refused, parts
/// may be averaged already. For float32 parameters.
/// Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016; error feedback
/// as in Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD", 2019.
struct Int8 {
  bool error_feedback = true;

  std::string text() const { return error_feedback ? "int8" : "int8:feedback=off"; }
  /// Throws: InvalidArgument for a bucket that is not float32.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

}  // namespace lockstep
