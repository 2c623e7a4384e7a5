#include "comm/messages/algorithm.h"

#include <array>

#include "comm/cost.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::messages {
namespace {

constexpr std::array all_algorithms{Algorithm::automatic, Algorithm::direct, Algorithm::ring};

}  // namespace

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return "auto";
    case Algorithm::direct:
      return "direct";
    case Algorithm::ring:
      return "ring";
  }
  return "unknown";
}

Algorithm parse_algorithm(std::string_view text) {
  for (const auto algorithm : all_algorithms) {
    if (text == name(algorithm)) return algorithm;
  }
  throw InvalidArgument(
      detail::concat("got algorithm '", text, "', expected auto, direct or ring"));
}

Algorithm cheapest(const Placement& placement, std::size_t bytes) {
  const Costs costs;
  const double length = static_cast<double>(bytes);
  return costs.seconds(mpi_ring(placement, length), placement) <
                 costs.seconds(mpi_direct(placement, length), placement)
             ? Algorithm::ring
             : Algorithm::direct;
}

}  // namespace lockstep::messages
