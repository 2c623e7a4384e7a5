#include "comm/messages/algorithm.h"

#include "comm/cost/cost.h"
#include "core/enum_names.h"

namespace lockstep::inline v0_2::messages {
namespace {

constexpr detail::EnumNames<Algorithm::ring> algorithms("auto", "direct", "ring");

}  // namespace

std::string_view name(Algorithm algorithm) { return algorithms.of(algorithm); }

Algorithm parse_algorithm(std::string_view text) { return algorithms.parse("algorithm:", text); }

Algorithm cheapest(const Placement& placement, std::size_t bytes) {
  const Costs costs;
  const double length = static_cast<double>(bytes);
  return costs.seconds(mpi_ring(placement, length), placement) <
                 costs.seconds(mpi_direct(placement, length), placement)
             ? Algorithm::ring
             : Algorithm::direct;
}

}  // namespace lockstep::messages
