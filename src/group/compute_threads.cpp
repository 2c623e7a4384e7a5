#include "group/compute_threads.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "lockstep/denormals.h"

namespace lockstep::inline v0_2::detail {

void flush_denormals_in_compute_threads(bool flush) {
  flush_denormals(flush);
  const int threads = at::get_num_threads();
  if (threads == 1) return;
  // TensorIterator runs in LibTorch's own OpenMP threads, with one element per thread here.
  // at::parallel_for is a template: compiled here, without OpenMP, it would use only the calling
  // thread.
  const auto elements = at::empty({threads}, at::kByte);
  auto each = at::TensorIterator::borrowing_nullary_op(elements);
  const auto set = [flush](char**, const std::int64_t*, std::int64_t, std::int64_t) {
    flush_denormals(flush);
  };
  each.for_each(set, /*grain_size=*/1);
}

}  // namespace lockstep::detail
