#include "formats/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/numeric/digest.h"
#include "core/system/atomic_file.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::safetensors {

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

Content parse(const at::Tensor& bytes, std::string_view file) {
  const std::span<const std::byte> all = bytes_of(bytes);
  const std::uint64_t length =
      header_length(all.first(std::min<std::size_t>(all.size(), length_bytes)), all.size(), file);
  const std::span<const std::byte> values = all.subspan(length_bytes + length);
  const auto* const text = reinterpret_cast<const char*>(all.data() + length_bytes);
  Header header = parse_header({text, length}, values.size(), file);
  Content content{.tensors = {}, .metadata = std::move(header.metadata), .checked = header.checked};
  for (const Entry& entry : header.entries) {
    const auto own = values.subspan(entry.begin, entry.end - entry.begin);
    check_values(entry, own, file);
    const at::Tensor tensor = empty_for(entry, file);
    std::copy(own.begin(), own.end(), writable_bytes_of(tensor).begin());
    content.tensors.emplace(entry.name, tensor);
  }
  return content;
}

Content read(const std::filesystem::path& path) {
  const Reader reader(path);
  Content content{
      .tensors = {}, .metadata = reader.header().metadata, .checked = reader.header().checked};
  for (const Entry& entry : reader.header().entries) {
    const at::Tensor tensor = empty_for(entry, path.string());
    reader.read(entry, writable_bytes_of(tensor));
    content.tensors.emplace(entry.name, tensor);
  }
  return content;
}

namespace {

using detail::concat;

std::string_view dtype_name(std::string_view file, const Entry& entry) {
  for (const DTypeName& known : dtype_names)
    if (known.type == entry.dtype) return known.name;
  throw CheckpointError(
      concat(file, ": tensor '", entry.name, "': cannot store dtype ", c10::toString(entry.dtype),
             ", which the format lacks: convert the tensor, or write_torch_file()"));
}

std::uint64_t bytes_of(const Entry& entry) {
  std::uint64_t bytes = c10::elementSize(entry.dtype);
  for (const std::int64_t size : entry.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

std::string digests_of(const std::vector<Entry>& entries) {
  std::string digests;
  for (const Entry& entry : entries) {
    if (!digests.empty()) digests += ' ';
    digests += digits_of(entry.digest.value());
  }
  return digests;
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
    add(value_digests_key, digests_of(header.entries));
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
      const nlohmann::json described = {{"dtype", dtype_name(file, entry)},
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
