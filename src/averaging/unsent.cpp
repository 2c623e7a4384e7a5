#include "averaging/unsent.h"

#include <cmath>

namespace lockstep::inline v0_2::averaging {

Unsent::Unsent(bool kept, const Elements& elements, Communicator& group) {
  if (!kept) return;
  values_ = Buffer(group, elements.count * size_of(elements.dtype));
  values_.fill_with_zeros();
}

template <class T>
void Unsent::drop_not_finite() const {
  for (auto& value : as<T>()) {
    if (!std::isfinite(value)) value = 0;
  }
}

template void Unsent::drop_not_finite<float>() const;
template void Unsent::drop_not_finite<double>() const;

}  // namespace lockstep::averaging
