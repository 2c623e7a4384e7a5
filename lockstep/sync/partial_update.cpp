#include "lockstep/sync/partial_update.h"

#include "lockstep/core/error.h"
#include "lockstep/sync/all_reduce.h"

namespace lockstep {

std::string PartialUpdate::text() const {
  return of == Content::gradients ? "partialUpdate:of=gradients" : "partialUpdate";
}

void PartialUpdate::check() const {
  if (of == Content::nothing) {
    throw InvalidArgument(
        "partialUpdate: got nothing to exchange, expected parameters or gradients");
  }
}

std::unique_ptr<Exchange> PartialUpdate::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

Content PartialUpdate::content(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  return static_cast<std::size_t>(step) % buckets == bucket ? of : Content::nothing;
}

}  // namespace lockstep
