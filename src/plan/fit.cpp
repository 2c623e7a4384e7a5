#include "plan/fit.h"

#include <algorithm>
#include <optional>

namespace lockstep::inline v0_2::plan {
namespace {

/// One measurement: how often it has each of two unknown costs, and its time without the known
/// costs.
struct Equation {
  double first;
  double second;
  double seconds;
};

struct Pair {
  double first;
  double second;
};

/// The pair of costs with the smallest squared relative errors. With only one equation, or with
/// linearly dependent ones, fits the second cost only.
std::optional<Pair> least_squares(const std::vector<Equation>& equations, double first) {
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const auto& [times_first, times_second, seconds] : equations) {
    const double x = times_first / seconds;
    const double y = times_second / seconds;
    aa += x * x;
    ab += x * y;
    bb += y * y;
    a += x;
    b += y;
  }
  if (bb == 0) return std::nullopt;
  const double determinant = aa * bb - ab * ab;
  if (determinant > 1e-9 * aa * bb) {
    const Pair both{.first = (a * bb - b * ab) / determinant,
                    .second = (b * aa - a * ab) / determinant};
    if (both.first >= 0 && both.second > 0) return both;
  }
  const double second = (b - first * ab) / bb;
  if (second <= 0) return std::nullopt;
  return Pair{.first = first, .second = second};
}

}  // namespace

Costs fit(const Costs& costs, const std::vector<Measurement>& measurements) {
  std::vector<Equation> in_memory;
  std::vector<Equation> over_network;
  Costs fitted = costs;
  for (const auto& one : measurements) {
    if (one.over != Measurement::Over::memory) continue;
    const auto traffic = host_direct(one.ranks, one.bytes);
    const double further =
        traffic.synchronizations * costs.synchronization_rank * std::max(0, one.ranks - 2);
    if (one.seconds <= further) continue;
    in_memory.push_back({traffic.synchronizations, traffic.moved, one.seconds - further});
  }
  if (const auto found = least_squares(in_memory, costs.synchronization)) {
    fitted.synchronization = found->first;
    fitted.moved_byte = found->second;
  }
  for (const auto& one : measurements) {
    if (one.over != Measurement::Over::network) continue;
    const auto placement = Placement::uniform(one.ranks, 1);
    const auto traffic = mpi_direct(placement, one.bytes);
    const double processor = fitted.of_processor(traffic, placement);
    if (one.seconds <= processor) continue;
    over_network.push_back({traffic.remote_messages, traffic.sent, one.seconds - processor});
  }
  if (const auto found = least_squares(over_network, costs.remote_message)) {
    fitted.remote_message = found->first;
    fitted.sent_byte = found->second;
  }
  return fitted;
}

}  // namespace lockstep::plan
