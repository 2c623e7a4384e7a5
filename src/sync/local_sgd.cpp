#include "averaging/fields.h"
#include "lockstep/strategies.h"

namespace lockstep::inline v0_2 {

std::string LocalSgd::text() const { return "local_sgd:period=" + std::to_string(period); }

void LocalSgd::check() const {
  detail::expect(period >= 1, "local_sgd", "period", static_cast<double>(period), "1 or more");
}

std::unique_ptr<Exchange> LocalSgd::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

SyncTarget LocalSgd::target(std::int64_t step, std::size_t, std::size_t) const {
  return (step + 1) % period == 0 ? SyncTarget::parameters : SyncTarget::none;
}

std::string PostLocalSgd::text() const {
  return "post_local_sgd:start=" + std::to_string(start) + ",period=" + std::to_string(period);
}

void PostLocalSgd::check() const {
  detail::expect(start >= 0, "post_local_sgd", "start", static_cast<double>(start), "0 or more");
  detail::expect(period >= 1, "post_local_sgd", "period", static_cast<double>(period), "1 or more");
}

std::unique_ptr<Exchange> PostLocalSgd::exchange(const Bucket& bucket) const {
  check();
  return AllReduce{}.exchange(bucket);
}

SyncTarget PostLocalSgd::target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  if (step < start) return SyncTarget::gradients;
  return LocalSgd{.period = period}.target(step - start, bucket, buckets);
}

}  // namespace lockstep
