#include "lockstep/sync/all_reduce.h"

namespace lockstep {
namespace {

class Mean final : public Exchange {
 public:
  Work advance(Turn turn, Bucket& bucket, const Group& group) override {
    if (turn.stage > 0) return {};
    return group.all_reduce(bucket.values(), ReduceOp::avg);
  }
  bool is_all_reduce() const override { return true; }
};

}  // namespace

std::unique_ptr<Exchange> AllReduce::exchange(const Bucket&) const {
  return std::make_unique<Mean>();
}

}  // namespace lockstep
