#include "lockstep/error.h"
#include "lockstep/strategies.h"

namespace lockstep::inline v0_2 {

std::string PartialUpdate::text() const {
  return of == SyncTarget::gradients ? "partial_update:of=gradients" : "partial_update";
}

void PartialUpdate::check() const {
  if (of == SyncTarget::none) {
    throw InvalidArgument(
        "partial_update: got nothing to exchange, expected parameters or gradients");
  }
}

std::unique_ptr<Exchange> PartialUpdate::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

SyncTarget PartialUpdate::target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  return static_cast<std::size_t>(step) % buckets == bucket ? of : SyncTarget::none;
}

}  // namespace lockstep
