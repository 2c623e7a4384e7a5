#include "lockstep/sync/residual.h"

#include <ATen/ops/zeros_like.h>

namespace lockstep::detail {

Residual::Residual(bool kept, const Bucket& bucket) {
  if (kept) values_ = at::zeros_like(bucket.values());
}

void Residual::drop_not_finite() {
  if (kept()) values_.nan_to_num_(0, 0, 0);
}

State Residual::state(const Layout& layout) const {
  return kept() ? layout.split(values_, "residual") : State{};
}

void Residual::load(const Layout& layout, const State& state) {
  if (kept()) layout.join(state, "residual", values_);
}

}  // namespace lockstep::detail
