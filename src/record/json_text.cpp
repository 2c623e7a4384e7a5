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

/// Follows a text from its beginning to its end; derived classes look at names and numbers. Nothing
/// is kept of it: objects of many names cost no look-ups.
class Reader : public json::json_sax_t {
 public:
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
  bool key(std::string& name) override { return named(name), true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 protected:
  int depth() const { return depth_; }
  virtual void named(std::string& name) = 0;
  virtual bool number(const JsonNumber&) { return true; }

 private:
  bool object_ = false;
  int depth_ = 0;
};

class FlatNumbers : public Reader {
 public:
  std::vector<std::pair<std::string, JsonNumber>> found;

 private:
  void named(std::string& name) override {
    if (depth() == 1) name_ = std::move(name);
  }
  bool number(const JsonNumber& value) override {
    if (depth() == 1) found.emplace_back(name_, value);
    return true;
  }
  std::string name_;
};

class Names : public Reader {
 public:
  JsonNames found;

 private:
  void named(std::string& name) override {
    if (depth() == 1) found.emplace_back(std::move(name), std::vector<std::string>());
    if (depth() == 2) found.back().second.push_back(std::move(name));
  }
};

}  // namespace

std::optional<std::vector<std::pair<std::string, JsonNumber>>> flat_numbers(std::string_view text) {
  FlatNumbers reader;
  if (!reader.read(text)) return std::nullopt;
  return std::move(reader.found);
}

std::optional<JsonNames> names_in_order(std::string_view text) {
  Names reader;
  if (!reader.read(text)) return std::nullopt;
  return std::move(reader.found);
}

std::optional<std::string> regular_file(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace lockstep::record
