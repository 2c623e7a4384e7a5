#include "record/continuation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"
#include "record/folder.h"
#include "record/json_text.h"
#include "record/scalar.h"

namespace lockstep::inline v0_2::record {
namespace {

using Numbers = std::vector<std::pair<std::string, JsonNumber>>;

const JsonNumber* value_of(const Numbers& line, std::string_view name) {
  const auto found = std::ranges::find(line, name, &Numbers::value_type::first);
  return found == line.end() ? nullptr : &found->second;
}

bool is_repeated(const Numbers& line, const Continuation& from) {
  const auto* step = value_of(line, "step");
  if (step == nullptr || !step->whole) return false;
  if (*step->whole != from.step) return *step->whole > from.step;
  const auto is_replaced = [&](const auto& named) {
    return is_position(named.first) ||
           std::ranges::find(from.names, named.first) != from.names.end();
  };
  return !from.names.empty() && std::ranges::all_of(line, is_replaced);
}

/// The lines with their ends; the last one may have none.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

}  // namespace

Discarded discard_repeated(const std::filesystem::path& folder, const char* name,
                           const Continuation& from) {
  const auto path = folder / name;
  const auto text = regular_file(path);
  if (!text) return {};
  Discarded result;
  std::string kept;
  std::string moved;
  for (const auto line : lines_of(*text)) {
    const auto numbers = flat_numbers(line);
    if (numbers && is_repeated(*numbers, from)) {
      ++result.records;
      moved += line;
      continue;
    }
    kept += line;
    const auto* step = numbers ? value_of(*numbers, "step") : nullptr;
    if (step != nullptr && step->whole == from.step) result.keeps_step = true;
    const auto* elapsed = numbers ? value_of(*numbers, "elapsed") : nullptr;
    if (elapsed != nullptr && std::isfinite(elapsed->value)) {
      result.elapsed = std::max(result.elapsed, elapsed->value);
    }
  }
  if (result.records == 0) return result;

  const nlohmann::ordered_json heading = {
      {"discarded_from", name},
      {"continued_at_step", std::max<std::int64_t>(from.step, 0)},
      {"time", detail::utc_text("%Y-%m-%dT%H:%M:%SZ")}};
  AppendFile discarded(folder / discarded_name, true);
  discarded.add(heading.dump() + '\n' + moved + (moved.ends_with('\n') ? "" : "\n"));
  if (discarded.error() != 0) {
    throw Error(detail::concat(discarded.path().string(),
                               ": cannot write: ", std::strerror(discarded.error())));
  }
  WholeFile file(path);
  file.out() << kept;
  file.commit();
  return result;
}

}  // namespace lockstep::record
