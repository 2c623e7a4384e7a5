#include "lockstep/autocast.h"

#include <ATen/autocast_mode.h>

#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat) {
    detail::throw_invalid("Autocast", "got ", c10::toString(dtype),
                          ", expected BFloat16, Half or Float");
  }
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_, dtype != at::kFloat);
  if (dtype == at::kFloat) return;
  at::autocast::set_autocast_dtype(device_, dtype);
  // The cache has one cast of a parameter, which an enclosing Autocast may have made.
  if (dtype != dtype_before_) at::autocast::clear_cache();
}

Autocast::~Autocast() {
  // Clears the cache of cast parameters, because parameters may change outside the outermost
  // Autocast, and an enclosing one may have another dtype.
  const bool changed = at::autocast::get_autocast_dtype(device_) != dtype_before_;
  if (at::autocast::decrement_nesting() == 0 || changed) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace lockstep
