#include "sync/residual.h"

#include <ATen/ops/from_blob.h>

#include <utility>

namespace lockstep::inline v0_2::detail {

Residual::Residual(bool kept, const Bucket& bucket) {
  if (!kept) return;
  const auto& values = bucket.values();
  values_ = bucket.group().empty(values.sizes(), values.scalar_type()).zero_();
}

Residual::Residual(std::shared_ptr<std::byte> memory, const Bucket& bucket) {
  if (memory == nullptr) return;
  auto* const data = memory.get();
  values_ = at::from_blob(
      data, bucket.values().sizes(),
      [memory = std::move(memory)](void*) mutable { memory.reset(); }, bucket.values().options());
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
