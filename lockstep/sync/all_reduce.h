#pragma once

#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// The mean over ranks at full precision, "fp32": one all_reduce a bucket, in the gradients' own
/// dtype. values[i] = (1/N) Σ_r values_r[i], summed in rank order.
struct AllReduce {
  std::string text() const { return "fp32"; }
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
};

}  // namespace lockstep
