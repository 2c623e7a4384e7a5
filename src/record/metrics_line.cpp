#include <nlohmann/json.hpp>

#include "record/scalar.h"

namespace lockstep::inline v0_2::record {

std::string metrics_line(std::int64_t step, double elapsed, std::span<const Scalar> scalars) {
  nlohmann::ordered_json line = {{"step", step}, {"elapsed", elapsed}};
  for (const auto& [name, value] : scalars) line[name] = value;
  // A name may hold bytes that are not UTF-8. `replace` keeps the line valid JSON.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace lockstep::record
