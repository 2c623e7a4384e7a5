#include "bench/settings.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "comm/host/world/world.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::bench {

using lockstep::detail::concat;

std::string_view name(Memory memory) {
  switch (memory) {
    case Memory::group:
      return "group";
    case Memory::own:
      return "private";
    case Memory::device:
      return "device";
  }
  return "";
}

namespace {

/// Memory that a new process may hope to get; no limit where the kernel does not say.
std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

void check_memory(const Settings& settings) {
  const std::size_t available = available_memory();
  const std::size_t largest = settings.max_bytes;
  const auto ranks = static_cast<std::size_t>(settings.ranks);
  // Input and output together, and as much again for what is staged on the way.
  const std::size_t copies = ranks * 2 * 2;
  if (largest > available / copies) {
    throw InvalidArgument(concat("bench: --max is ", largest, " bytes and ", ranks,
                                 " ranks need up to ", copies, " times that; this machine has ",
                                 available, " bytes of memory available, so --max can be at most ",
                                 available / copies));
  }
}

}  // namespace

void check(const Settings& settings) {
  if (settings.ranks < 1 || settings.ranks > host::max_ranks) {
    throw InvalidArgument(
        concat("bench: -n is ", settings.ranks, ", expected 1 to ", host::max_ranks, " ranks"));
  }
  if (settings.min_bytes == 0) {
    throw InvalidArgument("bench: --min is 0, expected at least one byte");
  }
  if (settings.min_bytes > settings.max_bytes) {
    throw InvalidArgument(concat("bench: --min is ", settings.min_bytes,
                                 " bytes, more than --max, ", settings.max_bytes, " bytes"));
  }
  if (settings.factor < 2) {
    throw InvalidArgument(concat("bench: --factor is ", settings.factor, ", expected 2 or more"));
  }
  if (!has_reduction(settings.dtype, settings.op)) {
    throw InvalidArgument(concat("bench: --op is ", name(settings.op), " of ", name(settings.dtype),
                                 ", expected a reduction of that dtype"));
  }
  if (settings.wire) {
    const bool halves = *settings.wire == DType::f16 || *settings.wire == DType::bf16;
    const bool sums = settings.op == ReduceOp::sum || settings.op == ReduceOp::avg;
    if (!halves || !sums || settings.collective != Collective::all_reduce ||
        settings.dtype != DType::f32) {
      throw InvalidArgument(concat("bench: --wire is ", name(*settings.wire), " for ",
                                   name(settings.collective), " ", name(settings.op), " of ",
                                   name(settings.dtype),
                                   ", expected float16 or bfloat16 for all_reduce sum or avg of "
                                   "float32"));
    }
  }
  if (settings.collective != Collective::barrier) check_memory(settings);
}

std::vector<std::size_t> sizes(const Settings& settings) {
  std::vector<std::size_t> result;
  std::size_t bytes = settings.min_bytes;
  for (;;) {
    result.push_back(bytes);
    if (bytes > settings.max_bytes / settings.factor) return result;
    bytes *= settings.factor;
  }
}

bool in_place(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::broadcast;
}

std::size_t part_count(const Settings& settings, std::size_t bytes) {
  const std::size_t parts =
      in_place(settings.collective) ? 1 : static_cast<std::size_t>(settings.ranks);
  return std::max<std::size_t>(1, bytes / (parts * size_of(settings.dtype)));
}

}  // namespace lockstep::bench
