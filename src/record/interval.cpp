#include "record/interval.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json_depth.h"
#include "record/json_text.h"

namespace lockstep::inline v0_2::record {
namespace {

// More than any run has, and few enough that sums over records and ranks stay in range.
constexpr std::int64_t most_steps = 1'000'000'000'000;
constexpr double most_seconds = 1e12;
constexpr std::int64_t most_samples = 1'000'000'000'000;

// These throw std::bad_optional_access.

template <class Integer>
Integer integer(const nlohmann::json& value) {
  return integer_of<Integer>(value).value();
}

double duration(const nlohmann::json& value) {
  const double seconds = value;
  return (std::abs(seconds) <= most_seconds ? std::optional(seconds) : std::nullopt).value();
}

}  // namespace

std::string interval_line(const Interval& interval) {
  auto ranks = nlohmann::ordered_json::array();
  for (const auto& rank : interval.ranks) {
    ranks.push_back({{"seconds", rank.seconds},
                     {"waiting", rank.waiting},
                     {"working", rank.working},
                     {"bytes", rank.bytes},
                     {"dense_bytes", rank.dense_bytes}});
    if (rank.loading > 0) ranks.back()["loading"] = rank.loading;
    if (rank.samples > 0) ranks.back()["samples"] = rank.samples;
  }
  const nlohmann::ordered_json line = {{"step", interval.step},
                                       {"steps", interval.steps},
                                       {"elapsed", interval.elapsed},
                                       {"ranks", std::move(ranks)}};
  return line.dump() + '\n';
}

std::optional<Interval> parse_interval(std::string_view text) {
  if (detail::json_is_too_deep(text)) return std::nullopt;
  try {
    const auto line = nlohmann::json::parse(text);
    Interval interval{.step = integer<std::int64_t>(line.at("step")),
                      .steps = integer<std::int64_t>(line.at("steps")),
                      .elapsed = line.at("elapsed")};
    if (interval.steps < 0 || interval.steps > most_steps) return std::nullopt;
    for (const auto& rank : line.at("ranks")) {
      const auto samples = rank.contains("samples") ? integer<std::int64_t>(rank["samples"]) : 0;
      if (samples < 0 || samples > most_samples) return std::nullopt;
      interval.ranks.push_back({.seconds = duration(rank.at("seconds")),
                                .waiting = duration(rank.at("waiting")),
                                .working = duration(rank.at("working")),
                                .loading = rank.contains("loading") ? duration(rank["loading"]) : 0,
                                .bytes = integer<std::uint64_t>(rank.at("bytes")),
                                .dense_bytes = integer<std::uint64_t>(rank.at("dense_bytes")),
                                .samples = samples});
    }
    if (interval.ranks.empty()) return std::nullopt;
    return interval;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const std::bad_optional_access&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::record
