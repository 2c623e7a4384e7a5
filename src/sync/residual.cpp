#include "sync/residual.h"

namespace lockstep::inline v0_2::detail {

Residual::Residual(bool kept, const Bucket& bucket) {
  if (!kept) return;
  const auto& values = bucket.values();
  values_ = bucket.group().empty(values.sizes(), values.scalar_type()).zero_();
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
