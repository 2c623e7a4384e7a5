#include "group/rank_options.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>

#include "core/environment.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

bool flush_denormals_setting(const std::optional<bool>& option) {
  return option.value_or(Environment::get().flush_denormals);
}

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

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

host::Options rank_options(const InitOptions& options, int threads_per_rank) {
  const auto& environment = Environment::get();
  const auto timeout = options.timeout.value_or(environment.timeout);
  if (timeout.count() <= 0) {
    throw_invalid("init", "got a timeout of ", timeout.count(), " ms, expected more than 0");
  }
  return {.timeout = timeout,
          .threads_per_rank = threads_per_rank,
          // A rank that is bound to one core sees only that one. Its launcher sets LOCKSTEP_CORES.
          .cores = environment.cores.value_or(usable_cores())};
}

}  // namespace lockstep::detail
