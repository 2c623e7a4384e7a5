#include <utility>

#include "averaging/parse.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/strategies.h"

// Strategies that select what an average or another strategy exchanges at a step.

namespace lockstep::inline v0_2 {
namespace {

class WarmupExchange final : public Exchange {
 public:
  WarmupExchange(std::int64_t steps, std::unique_ptr<Exchange> first,
                 std::unique_ptr<Exchange> then)
      : steps_(steps), first_(std::move(first)), then_(std::move(then)) {}

  ExchangeTask exchange(std::int64_t step, Bucket& bucket, const Group& group) override {
    return step < steps_ ? first_->exchange(step, bucket, group)
                         : then_->exchange(step - steps_, bucket, group);
  }
  void before_update(std::int64_t step, const Bucket& bucket) override {
    then_->before_update(step - steps_, bucket);
  }
  bool is_all_reduce() const override { return then_->is_all_reduce(); }
  State state() const override { return then_->state(); }
  void load(const State& state) override { then_->load(state); }

 private:
  std::int64_t steps_;
  std::unique_ptr<Exchange> first_;
  std::unique_ptr<Exchange> then_;
};

}  // namespace

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

std::string Warmup::text() const { return detail::concat("warmup:", steps, ':', strategy.text()); }

void Warmup::check() const {
  detail::expect(steps >= 0, "warmup", "number of steps", static_cast<double>(steps), "0 or more");
}

std::unique_ptr<Exchange> Warmup::exchange(const Bucket& bucket) const {
  check();
  return std::make_unique<WarmupExchange>(steps, AllReduce{}.exchange(bucket),
                                          strategy.exchange(bucket));
}

SyncTarget Warmup::target(std::int64_t step, std::size_t bucket, std::size_t buckets) const {
  return step < steps ? SyncTarget::gradients : strategy.target(step - steps, bucket, buckets);
}

}  // namespace lockstep
