#include "record/json_text.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/json_depth.h"

namespace lockstep::inline v0_2::record {
namespace {

using nlohmann::json;

JsonNumber number_of(const json& value) {
  if (value.is_null()) return {.value = std::nan(""), .whole = {}};
  const auto number = value.get<double>();
  constexpr double most = 1e15;  // whole numbers are exact up to there
  const bool fits = value.is_number_float() ? std::abs(number) <= most
                    : value.is_number_unsigned()
                        ? std::in_range<std::int64_t>(value.get<std::uint64_t>())
                        : true;
  return {.value = number, .whole = fits ? std::optional(value.get<std::int64_t>()) : std::nullopt};
}

}  // namespace

std::optional<std::vector<std::pair<std::string, JsonNumber>>> flat_numbers(std::string_view text) {
  if (detail::json_is_too_deep(text)) return std::nullopt;
  std::vector<std::pair<std::string, JsonNumber>> found;
  std::string name;
  const auto take = [&](int depth, json::parse_event_t event, const json& value) {
    if (depth == 1 && event == json::parse_event_t::key) name = value.get<std::string>();
    const bool is_number = value.is_number() || value.is_null();
    if (depth == 1 && event == json::parse_event_t::value && is_number) {
      found.emplace_back(name, number_of(value));
    }
    return true;
  };
  if (!json::parse(text, take, false).is_object()) return std::nullopt;
  return found;
}

std::optional<std::string> regular_file(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace lockstep::record
