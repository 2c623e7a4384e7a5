#include "record/json_text.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json_depth.h"

namespace lockstep::inline v0_2::record {
namespace {

using nlohmann::json;

/// Follows a text from its beginning to its end, and takes the names and numbers that the caller
/// asks for. Nothing else is kept of it: objects of many names cost no look-ups.
class Reader final : public json::json_sax_t {
 public:
  std::vector<std::pair<std::string, JsonNumber>>* numbers = nullptr;
  JsonNames* names = nullptr;

  bool read(std::string_view text) {
    return !detail::json_is_too_deep(text) && json::sax_parse(text, this) && object_;
  }

  bool null() override { return number({.value = std::nan(""), .whole = {}}); }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t value) override {
    return number({.value = static_cast<double>(value), .whole = value});
  }
  bool number_unsigned(std::uint64_t value) override {
    const bool fits = value <= std::numeric_limits<std::int64_t>::max();
    return number({.value = static_cast<double>(value),
                   .whole = fits ? std::optional(static_cast<std::int64_t>(value)) : std::nullopt});
  }
  bool number_float(double value, const std::string&) override {
    constexpr double most = 1e15;  // whole numbers are exact up to there
    const bool fits = std::abs(value) <= most;
    return number({.value = value,
                   .whole = fits ? std::optional(static_cast<std::int64_t>(value)) : std::nullopt});
  }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (depth_ == 0) object_ = true;
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override { return ++depth_, true; }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& name) override {
    if (names != nullptr && depth_ == 1) names->emplace_back(name, std::vector<std::string>());
    if (names != nullptr && depth_ == 2 && !names->empty()) names->back().second.push_back(name);
    if (depth_ == 1) name_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  bool number(const JsonNumber& value) {
    if (numbers != nullptr && depth_ == 1) numbers->emplace_back(name_, value);
    return true;
  }

  bool object_ = false;
  int depth_ = 0;
  std::string name_;  ///< the last one of the outermost object
};

}  // namespace

std::optional<std::vector<std::pair<std::string, JsonNumber>>> flat_numbers(std::string_view text) {
  std::vector<std::pair<std::string, JsonNumber>> found;
  Reader reader;
  reader.numbers = &found;
  return reader.read(text) ? std::optional(std::move(found)) : std::nullopt;
}

std::optional<JsonNames> names_in_order(std::string_view text) {
  JsonNames found;
  Reader reader;
  reader.names = &found;
  return reader.read(text) ? std::optional(std::move(found)) : std::nullopt;
}

std::optional<std::string> regular_file(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace lockstep::record
