#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/numeric/digest.h"
#include "core/text.h"
#include "formats/safetensors.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::safetensors {

namespace {

using detail::concat;
using nlohmann::json;

class Parser {
 public:
  Parser(std::string_view text, std::uint64_t value_bytes, std::string_view file)
      : text_(text), value_bytes_(value_bytes), file_(file) {}

  Header parse() const {
    Header header;
    header.checked = check_digest();
    parse_members(header);
    check_ranges(header.entries);
    read_digests(header);
    return header;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckpointError(concat(file_, ": ", parts...));
  }

  // Runs before the header is parsed. Only Lockstep's headers begin with a digest.
  bool check_digest() const {
    if (!text_.starts_with(checked_header)) return false;
    std::string text(text_);
    const std::string_view found = text_.substr(checked_header.size(), digest_digits);
    text.replace(checked_header.size(), found.size(), found.size(), '0');
    if (const std::string expected = digits_of(detail::digest(std::as_bytes(std::span(text))));
        found != expected)
      fail("header: is damaged: its digest is ", expected, ", expected ", found);
    return true;
  }

  void read_digests(Header& header) const {
    header.metadata.erase(header_digest_key);
    const auto digests = header.metadata.extract(value_digests_key);
    if (!digests) {
      header.checked = false;
      return;
    }
    std::string_view rest = digests.mapped();
    for (Entry& entry : header.entries) {
      std::uint64_t digest = 0;
      const std::string_view digits = rest.substr(0, digest_digits);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), digest, 16);
      if (error != std::errc() || end != digits.data() + digest_digits)
        fail("tensor '", entry.name, "': expected a digest, found '", digits, "'");
      entry.digest = digest;
      rest.remove_prefix(std::min(rest.size(), digest_digits + 1));
    }
  }

  // Converts each member of the header where it ends and discards it: the JSON library scans all
  // members that are kept whenever an object ends. It would also keep the last of two equal names,
  // and overflow the stack at a great depth.
  void parse_members(Header& header) const {
    std::vector<std::set<std::string>> open;  // the names in each open object
    std::string name;                         // of the current member of the header
    const auto convert = [&](int depth, json::parse_event_t event, json& parsed) {
      constexpr int max_levels = 4;
      using Event = json::parse_event_t;
      if (depth > max_levels) fail("header: expected at most ", max_levels, " levels, found more");
      if (depth == 0 && event == Event::array_start)
        fail("header: expected an object, found array");
      if (event == Event::object_start) {
        if (depth > 1) fail("header: '", name, "': expected no object within it, found one");
        open.emplace_back();
      }
      if (event == Event::object_end) open.pop_back();
      if (event == Event::key) {
        auto key = parsed.get<std::string>();
        if (!open.back().insert(key).second) fail("header: the name '", key, "' occurs twice");
        if (depth == 1) name = std::move(key);
      }
      const bool is_member = depth == 1 && (event == Event::object_end ||
                                            event == Event::array_end || event == Event::value);
      if (is_member && name == metadata_key)
        header.metadata = metadata(parsed);
      else if (is_member)
        header.entries.push_back(entry(name, parsed));
      return !is_member;
    };
    try {
      const json rest = json::parse(text_, convert);
      if (!rest.is_object()) fail("header: expected an object, found ", rest.type_name());
    } catch (const json::exception& error) {
      fail("header: ", error.what());
    }
  }

  std::map<std::string, std::string> metadata(const json& value) const {
    if (!value.is_object()) fail(metadata_key, ": expected an object, found ", value.type_name());
    std::map<std::string, std::string> texts;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        fail(metadata_key, ": '", key, "': expected a string, found ", text.type_name());
      texts[key] = text.get<std::string>();
    }
    return texts;
  }

  Entry entry(const std::string& name, const json& value) const {
    const auto member = [&](const char* key) -> const json& {
      if (!value.is_object() || !value.contains(key)) fail("tensor '", name, "': found no ", key);
      return value[key];
    };
    const std::vector<std::uint64_t> sizes = numbers(name, "shape", member("shape"));
    const std::vector<std::uint64_t> offsets =
        numbers(name, "data_offsets", member("data_offsets"));
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > value_bytes_)
      fail("tensor '", name, "': expected data_offsets [begin, end] within ", value_bytes_,
           " bytes, found ", member("data_offsets").dump());
    Entry entry{.name = name,
                .dtype = dtype(name, member("dtype")),
                .shape = {sizes.begin(), sizes.end()},
                .begin = offsets[0],
                .end = offsets[1]};
    if (const std::uint64_t expected = bytes_of(entry, sizes); expected != entry.end - entry.begin)
      fail("tensor '", name, "': expected ", expected, " bytes for ", member("dtype").dump(), ' ',
           member("shape").dump(), ", found ", entry.end - entry.begin);
    return entry;
  }

  std::vector<std::uint64_t> numbers(const std::string& name, const char* key,
                                     const json& value) const {
    const bool good =
        value.is_array() && std::all_of(value.begin(), value.end(), [](const json& number) {
          return number.is_number_unsigned() &&
                 number.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
        });
    if (!good)
      fail("tensor '", name, "': ", key, ": expected an array of sizes, found ", value.dump());
    return value.get<std::vector<std::uint64_t>>();
  }

  c10::ScalarType dtype(const std::string& name, const json& value) const {
    if (value.is_string())
      for (const DTypeName& known : dtype_names)
        if (known.name == value.get_ref<const std::string&>()) return known.type;
    fail("tensor '", name, "': expected a dtype of ",
         detail::joined(dtype_names, " ", &DTypeName::name), ", found ", value.dump(),
         ": convert the tensor where the file was written");
  }

  std::uint64_t bytes_of(const Entry& entry, const std::vector<std::uint64_t>& sizes) const {
    std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
    bool empty = false;
    for (const std::uint64_t size : sizes) {
      // Also checks sizes beside a size of 0: LibTorch multiplies them for the strides.
      const auto factor = static_cast<std::int64_t>(std::max<std::uint64_t>(size, 1));
      if (__builtin_mul_overflow(bytes, factor, &bytes))
        fail("tensor '", entry.name, "': expected at most ", value_bytes_,
             " bytes, found a shape beyond any memory");
      empty = empty || size == 0;
    }
    return empty ? 0 : static_cast<std::uint64_t>(bytes);
  }

  // Every byte after the header must belong to exactly one tensor.
  void check_ranges(std::vector<Entry>& entries) const {
    // Stable: tensors without values may have equal ranges.
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t expected = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != expected)
        fail("tensor '", entry.name, "': expected its values at ", expected, ", found ",
             entry.begin);
      expected = entry.end;
    }
    if (expected != value_bytes_)
      fail("expected ", expected, " bytes of values, found ", value_bytes_);
  }

  std::string_view text_;
  std::uint64_t value_bytes_;
  std::string_view file_;
};

}  // namespace

Header parse_header(std::string_view text, std::uint64_t value_bytes, std::string_view file) {
  return Parser(text, value_bytes, file).parse();
}

std::uint64_t header_length(std::span<const std::byte> first, std::uint64_t file_bytes,
                            std::string_view file) {
  constexpr std::string_view other = ": it is cut off, or not a safetensors file";
  if (first.size() < length_bytes)
    throw CheckpointError(
        concat(file, ": expected at least ", length_bytes, " bytes, found ", first.size(), other));
  std::uint64_t length = 0;
  std::memcpy(&length, first.data(), length_bytes);
  const std::uint64_t max_length =
      std::min<std::uint64_t>(file_bytes - length_bytes, max_header_bytes);
  if (length > max_length && std::memcmp(first.data(), "PK\3\4", 4) == 0)
    throw CheckpointError(
        concat(file,
               ": is a zip file, as torch::save() and Python's torch.save write, expected a "
               "safetensors file: read it by torch::load() or read_torch_file()"));
  if (length > max_length)
    throw CheckpointError(concat(file, ": offset 0: expected a header of at most ", max_length,
                                 " bytes, found a length of ", length, other));
  return length;
}

at::Tensor empty_for(const Entry& entry, std::string_view file) {
  try {
    return at::empty(entry.shape, entry.dtype);
  } catch (const c10::Error&) {
    throw CheckpointError(concat(file, ": tensor '", entry.name, "': no memory for its ",
                                 entry.end - entry.begin, " bytes"));
  }
}

void check_values(const Entry& entry, std::span<const std::byte> values, std::string_view file) {
  if (!entry.digest) return;
  if (const std::uint64_t found = detail::digest(values); found != *entry.digest)
    throw CheckpointError(concat(file, ": tensor '", entry.name,
                                 "': its values are damaged: their digest is ", digits_of(found),
                                 ", expected ", digits_of(*entry.digest)));
}

}  // namespace lockstep::safetensors
