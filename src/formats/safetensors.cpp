#include "formats/safetensors.h"

#include <c10/util/accumulate.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/numeric/digest.h"
#include "core/system/files.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::safetensors {

using detail::concat;

namespace {

/// The name of a dtype; null if the format lacks it.
const std::string_view* name_of(c10::ScalarType type) {
  const auto* const known = std::ranges::find(dtype_names, type, &DTypeName::type);
  return known == std::end(dtype_names) ? nullptr : &known->name;
}

}  // namespace

void check_storable(std::string_view where, const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const auto&... what) {
    throw CheckpointError(concat(where, "tensor '", name, "': cannot ", what...));
  };
  if (!tensor.defined()) refuse("be stored: undefined");
  if (tensor.is_meta()) refuse("be stored: of device meta, which has no values");
  if (tensor.layout() != at::kStrided || name == metadata_key)
    refuse("be stored: not dense, or its name is reserved");
  if (name_of(tensor.scalar_type()) == nullptr)
    refuse("store dtype ", tensor.scalar_type(),
           ", which the format lacks: convert the tensor, or write_torch_file()");
}

std::vector<Piece> pieces_of(const Content& content, std::string_view file) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : content.tensors) {
    check_storable(concat(file, ": "), name, tensor);
    at::Tensor values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    Entry entry{.name = name, .dtype = values.scalar_type(), .shape = values.sizes().vec()};
    entry.digest = detail::digest(bytes_of(values));
    pieces.push_back({.entry = std::move(entry), .values = std::move(values)});
  }
  std::ranges::stable_sort(pieces, before_in_file, &Piece::entry);
  return pieces;
}

bool before_in_file(const Entry& a, const Entry& b) {
  return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> writable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

Reader::Reader(const std::filesystem::path& path)
    : path_(path.string()), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!fd_) fail("open", errno);
  struct stat status {};
  if (fstat(fd_.get(), &status) != 0) fail("read", errno);
  if (!S_ISREG(status.st_mode)) throw CheckpointError(concat(path_, ": is not a regular file"));
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  std::array<std::byte, length_bytes> buffer{};
  const std::span first = std::span(buffer).first(std::min<std::size_t>(bytes, length_bytes));
  read_at(0, first);
  text_.resize(header_length(first, bytes, path_));
  read_at(length_bytes, std::as_writable_bytes(std::span(text_)));
  value_bytes_ = bytes - length_bytes - text_.size();
  header_ = parse_header(text_, value_bytes_, path_);
}

void Reader::read(const Entry& entry, std::span<std::byte> values) const {
  read_at(length_bytes + text_.size() + entry.begin, values);
  check_values(entry, values, path_);
}

void Reader::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        pread(fd_.get(), bytes.data(), std::min(bytes.size(), std::size_t{1} << 30),
              static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", errno);
    if (count == 0) throw CheckpointError(concat(path_, ": became shorter while it was read"));
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void Reader::fail(const char* action, int error) const {
  throw CheckpointError(
      concat(path_, ": cannot ", action, ": ", std::generic_category().message(error)));
}

void write(const std::filesystem::path& path, const Content& content) {
  const std::vector<Piece> pieces = pieces_of(content, path.string());
  Header header{.entries = {}, .metadata = content.metadata};
  for (const Piece& piece : pieces) header.entries.push_back(piece.entry);
  const std::string first = write_header(header, path.string());

  detail::AtomicFile file(path, detail::AtomicFile::Use::checkpoint);
  file.write(first);
  for (const Piece& piece : pieces) file.write(bytes_of(piece.values));
  file.commit();
}

namespace {

/// The tensors of a header. read: writes the values of an entry into memory.
template <class Read>
Content content_of(const Header& header, std::string_view file, const Read& read) {
  Content content{.tensors = {}, .metadata = header.metadata, .checked = header.checked};
  for (const Entry& entry : header.entries) {
    const at::Tensor tensor = empty_for(entry, file);
    read(entry, writable_bytes_of(tensor));
    content.tensors.emplace(entry.name, tensor);
  }
  return content;
}

}  // namespace

Content parse(const at::Tensor& bytes, std::string_view file) {
  const std::span<const std::byte> all = bytes_of(bytes);
  const std::uint64_t length =
      header_length(all.first(std::min<std::size_t>(all.size(), length_bytes)), all.size(), file);
  const std::span<const std::byte> values = all.subspan(length_bytes + length);
  const auto* const text = reinterpret_cast<const char*>(all.data() + length_bytes);
  const Header header = parse_header({text, length}, values.size(), file);
  return content_of(header, file, [&](const Entry& entry, std::span<std::byte> to) {
    const auto own = values.subspan(entry.begin, entry.end - entry.begin);
    check_values(entry, own, file);
    std::ranges::copy(own, to.begin());
  });
}

Content read(const std::filesystem::path& path) {
  const Reader reader(path);
  return content_of(reader.header(), path.string(), std::bind_front(&Reader::read, &reader));
}

namespace {

std::uint64_t bytes_of(const Entry& entry) {
  return c10::elementSize(entry.dtype) *
         static_cast<std::uint64_t>(c10::multiply_integers(entry.shape));
}

}  // namespace

std::string write_header(Header& header, std::string_view file) {
  // Concatenates JSON texts: an ordered_json would search all earlier names for every new one.
  std::string text = concat("{\"", metadata_key, "\":{");
  try {
    const auto add = [&](const std::string& key, const nlohmann::json& value) {
      if (!text.ends_with('{')) text += ',';
      text += nlohmann::json(key).dump() + ':' + value.dump();
    };
    add(header_digest_key, std::string(digest_digits, '0'));
    add(value_digests_key, detail::joined(header.entries, " ", [](const Entry& entry) {
          return digits_of(entry.digest.value());
        }));
    for (const auto& [key, note] : header.metadata) {
      if (key == header_digest_key || key == value_digests_key)
        throw CheckpointError(concat(file, ": note '", key, "': the name is reserved"));
      add(key, note);
    }
    text += '}';
    std::uint64_t offset = 0;
    for (Entry& entry : header.entries) {
      entry.begin = offset;
      entry.end = offset += bytes_of(entry);
      const nlohmann::json described = {{"dtype", *name_of(entry.dtype)},
                                        {"shape", entry.shape},
                                        {"data_offsets", {entry.begin, entry.end}}};
      add(entry.name, described);
    }
    text += '}';
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(concat(file, ": a name or note is not UTF-8: ", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > max_header_bytes)
    throw CheckpointError(concat(file, ": the header has ", text.size(),
                                 " bytes, expected at most ", max_header_bytes));
  text.replace(checked_header.size(), digest_digits,
               digits_of(detail::digest(std::as_bytes(std::span(text)))));

  const std::uint64_t length = text.size();
  std::string bytes(length_bytes, '\0');
  std::memcpy(bytes.data(), &length, length_bytes);
  return bytes + text;
}

}  // namespace lockstep::safetensors
