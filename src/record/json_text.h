#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::record {

/// A value of a flat JSON object: a number, or null, which stands for what is no number.
struct JsonNumber {
  double value;
  std::optional<std::int64_t> whole;  ///< the same, where it is a whole number
};

/// The numbers and nulls of a JSON object in their order, without what is nested or no number. None
/// where the text is no object.
std::optional<std::vector<std::pair<std::string, JsonNumber>>> flat_numbers(std::string_view text);

/// The content of a regular file; none where there is no such file. Nothing else is opened: a fifo
/// would wait for its writer.
std::optional<std::string> regular_file(const std::filesystem::path& path);

}  // namespace lockstep::record
