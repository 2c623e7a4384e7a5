#include "lockstep/record/lap.h"

#include <nlohmann/json.hpp>

namespace lockstep::record {

std::string lap_line(const Lap& lap) {
  auto ranks = nlohmann::ordered_json::array();
  for (const auto& rank : lap.ranks) {
    ranks.push_back({{"seconds", rank.seconds},
                     {"waiting", rank.waiting},
                     {"working", rank.working},
                     {"bytes", rank.bytes},
                     {"dense_bytes", rank.dense_bytes}});
  }
  const nlohmann::ordered_json line = {{"step", lap.step},
                                       {"steps", lap.steps},
                                       {"elapsed", lap.elapsed},
                                       {"ranks", std::move(ranks)}};
  return line.dump() + '\n';
}

std::optional<Lap> parse_lap(std::string_view text) {
  try {
    const auto line = nlohmann::json::parse(text);
    Lap lap{.step = line.at("step"), .steps = line.at("steps"), .elapsed = line.at("elapsed")};
    for (const auto& rank : line.at("ranks")) {
      lap.ranks.push_back({.seconds = rank.at("seconds"),
                           .waiting = rank.at("waiting"),
                           .working = rank.at("working"),
                           .bytes = rank.at("bytes"),
                           .dense_bytes = rank.at("dense_bytes")});
    }
    if (lap.ranks.empty()) return std::nullopt;
    return lap;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::record
