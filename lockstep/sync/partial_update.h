#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/sync/exchange.h"

namespace lockstep {

/// One bucket a step is averaged, in turn, "partialUpdate" or "partialUpdate:of=gradients"; every
/// rank goes its own way with the others. After as many steps as there are buckets each has been
/// averaged once. Before evaluation or a checkpoint, synchronize() the parameters.
/// Source: Apache SINGA's partial update, of parameters in version 3, of gradients before.
struct PartialUpdate {
  SyncTarget of = SyncTarget::parameters;  ///< parameters or gradients

  std::string text() const;
  /// Throws: InvalidArgument for a value out of its range.
  void check() const;
  std::unique_ptr<Exchange> exchange(const Bucket& bucket) const;
  SyncTarget target(std::int64_t step, std::size_t bucket, std::size_t buckets) const;
};

}  // namespace lockstep
