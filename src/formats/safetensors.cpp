#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/atomic_file.h"
#include "formats/safetensors_format.h"
#include "formats/safetensors_header.h"
#include "formats/safetensors_piece.h"
#include "formats/safetensors_reader.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::safetensors {

void write(const std::filesystem::path& path, const Content& content) {
  const std::vector<Piece> pieces = pieces_of(content, path.string());
  Header header{.entries = {}, .metadata = content.metadata};
  for (const Piece& piece : pieces) header.entries.push_back(piece.entry);
  const std::string first = write_header(header, path.string());

  detail::AtomicFile file(path);
  file.write(std::as_bytes(std::span(first)));
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

}  // namespace lockstep::safetensors
