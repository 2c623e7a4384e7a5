#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// What the ranks' optimizers changed is joined instead of averaged, "adasum": changes that are
/// orthogonal add up, equal ones count once. Of two ranks' changes a and b of a parameter,
/// (1 − a·b / 2|a|²) a + (1 − a·b / 2|b|²) b; of more in a tree, whose left side has ⌈n/2⌉ of n
/// ranks: Horovod's tree for the powers of two that it takes. A change of nothing leaves the other
/// as it is. Parameters = those before the step + the joined change. NaN and Inf are passed on.
/// For float32 and float64 parameters.
/// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, arXiv
/// 2006.02924. Horovod adds squares below 10⁻⁸ plainly; here the formula holds for them too.
struct Adasum {
  std::string text() const { return "adasum"; }
  /// Remembers the bucket's parameters, which must be equal on all ranks by now.
  /// Throws: InvalidArgument for a bucket of another dtype.
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t, std::size_t, std::size_t) const { return SyncTarget::parameters; }
};

}  // namespace lockstep
