#include <nlohmann/json.hpp>

#include "lockstep/record/scalar.h"

namespace lockstep::record {

std::string metrics_line(std::int64_t step, double elapsed, std::span<const Scalar> scalars) {
  nlohmann::ordered_json line = {{"step", step}, {"elapsed", elapsed}};
  for (const auto& [name, value] : scalars) line[name] = value;
  // Whatever bytes a name holds, the line is read by others.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace lockstep::record
