#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "core/environment.h"
#include "lockstep/denormals.h"

namespace lockstep::inline v0_2::detail {

bool flush_denormals_setting(const std::optional<bool>& option) {
  return option.value_or(Environment::get().flush_denormals);
}

void flush_denormals_in_compute_threads(bool flush) {
  flush_denormals(flush);
  const int threads = at::get_num_threads();
  if (threads == 1) return;
  // One element a thread. at::parallel_for is a template: compiled here, without OpenMP, it would
  // stay in the calling thread. An OpenMP of this library's own could have other threads than
  // LibTorch's.
  const auto elements = at::empty({threads}, at::kByte);
  auto each = at::TensorIterator::borrowing_nullary_op(elements);
  const auto set = [flush](char**, const std::int64_t*, std::int64_t, std::int64_t) {
    flush_denormals(flush);
  };
  each.for_each(set, /*grain_size=*/1);
}

}  // namespace lockstep::detail
