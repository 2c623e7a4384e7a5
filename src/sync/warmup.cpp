#include <utility>

#include "averaging/fields.h"
#include "core/text.h"
#include "lockstep/strategies.h"

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
