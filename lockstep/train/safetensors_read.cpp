#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/train/safetensors.h"
#include "lockstep/train/safetensors_format.h"

namespace lockstep::safetensors {

namespace {

using detail::concat;
using nlohmann::json;

/// One tensor as the header describes it.
struct Entry {
  std::string name;
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;
  std::uint64_t end;
};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  Content parse() {
    const json header = parse_header();
    Content content;
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == metadata_key)
        content.metadata = metadata(value);
      else
        entries.push_back(entry(name, value));
    }
    check_tiling(entries);
    for (const Entry& entry : entries) content.tensors.emplace(entry.name, values(entry));
    return content;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckpointError(concat(file_, ": ", parts...));
  }

  json parse_header() {
    if (bytes_.size() < length_bytes)
      fail("expected at least ", length_bytes, " bytes, found ", bytes_.size());
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), length_bytes);
    const std::uint64_t most =
        std::min<std::uint64_t>(bytes_.size() - length_bytes, longest_header);
    if (length > most)
      fail("offset 0: expected a header of at most ", most, " bytes, found a length of ", length);
    const auto* text = reinterpret_cast<const char*>(bytes_.data() + length_bytes);
    data_ = bytes_.subspan(length_bytes + length);
    try {
      json header = json::parse(text, text + length, refuse_misuse());
      if (!header.is_object()) fail("header: expected an object, found ", header.type_name());
      return header;
    } catch (const json::exception& error) {
      fail("header: ", error.what());
    }
  }

  // The JSON library would keep the last of two equal names and say nothing, and would follow any
  // depth until the stack is full.
  json::parser_callback_t refuse_misuse() const {
    return [this, open = std::vector<std::set<std::string>>()](int depth, json::parse_event_t event,
                                                               json& parsed) mutable {
      constexpr int deepest = 4;
      if (depth > deepest) fail("header: expected at most ", deepest, " levels, found more");
      if (event == json::parse_event_t::object_start) open.emplace_back();
      if (event == json::parse_event_t::object_end) open.pop_back();
      if (event == json::parse_event_t::key &&
          !open.back().insert(parsed.get<std::string>()).second)
        fail("header: the name '", parsed.get<std::string>(), "' occurs twice");
      return true;
    };
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
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size())
      fail("tensor '", name, "': expected data_offsets [begin, end] within ", data_.size(),
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
    std::string names;
    for (const DTypeName& known : dtype_names) names += concat(' ', known.name);
    fail("tensor '", name, "': expected a dtype of", names, ", found ", value.dump());
  }

  std::uint64_t bytes_of(const Entry& entry, const std::vector<std::uint64_t>& sizes) const {
    std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
    bool empty = false;
    for (const std::uint64_t size : sizes) {
      // Sizes beside a zero count too: LibTorch multiplies them for the strides.
      const auto factor = static_cast<std::int64_t>(std::max<std::uint64_t>(size, 1));
      if (__builtin_mul_overflow(bytes, factor, &bytes))
        fail("tensor '", entry.name, "': expected at most ", data_.size(),
             " bytes, found a shape beyond any memory");
      empty = empty || size == 0;
    }
    return empty ? 0 : static_cast<std::uint64_t>(bytes);
  }

  // No overlap, no hole, nothing behind the last tensor: every byte of the file is accounted for.
  void check_tiling(std::vector<Entry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t expected = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != expected)
        fail("tensor '", entry.name, "': expected its values at ", expected, ", found ",
             entry.begin);
      expected = entry.end;
    }
    if (expected != data_.size())
      fail("expected ", expected, " bytes of values, found ", data_.size());
  }

  at::Tensor values(const Entry& entry) const {
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    const std::uint64_t count = entry.end - entry.begin;
    if (count > 0) std::memcpy(tensor.mutable_data_ptr(), data_.data() + entry.begin, count);
    return tensor;
  }

  std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
  std::string_view file_;
};

/// A file open for reading.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail("open", errno);
  }
  ~OpenFile() { close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::size_t size() const {
    struct stat status {};
    if (fstat(fd_, &status) != 0) fail("read", errno);
    if (!S_ISREG(status.st_mode))
      throw CheckpointError(concat(path_.string(), ": is not a regular file"));
    return static_cast<std::size_t>(status.st_size);
  }

  void read(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::read(fd_, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("read", errno);
      if (count == 0)
        throw CheckpointError(concat(path_.string(), ": became shorter while it was read"));
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  [[noreturn]] void fail(const char* doing, int error) const {
    throw CheckpointError(
        concat(path_.string(), ": cannot ", doing, ": ", std::generic_category().message(error)));
  }

  std::filesystem::path path_;
  int fd_;
};

}  // namespace

at::Tensor read_bytes(const std::filesystem::path& path) {
  const OpenFile file(path);
  const std::size_t size = file.size();
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  file.read({static_cast<std::byte*>(bytes.mutable_data_ptr()), size});
  return bytes;
}

Content parse(const at::Tensor& bytes, std::string_view file) {
  return Parser({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()}, file)
      .parse();
}

Content read(const std::filesystem::path& path) { return parse(read_bytes(path), path.string()); }

}  // namespace lockstep::safetensors
