#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"
#include "lockstep/train/atomic_file.h"
#include "lockstep/train/safetensors.h"
#include "lockstep/train/safetensors_format.h"

namespace lockstep::safetensors {

namespace {

using NamedTensor = std::pair<std::string, at::Tensor>;

std::string_view dtype_name(const std::filesystem::path& path, const NamedTensor& entry) {
  for (const DTypeName& known : dtype_names)
    if (known.type == entry.second.scalar_type()) return known.name;
  throw CheckpointError(detail::concat(path.string(), ": tensor '", entry.first,
                                       "': cannot store dtype ",
                                       c10::toString(entry.second.scalar_type())));
}

// Wide dtypes first, so that every tensor is aligned to its dtype; then by name, as the map gives
// them.
std::vector<NamedTensor> in_file_order(const std::filesystem::path& path, const Content& content) {
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : content.tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || name == metadata_key)
      throw CheckpointError(
          detail::concat(path.string(), ": tensor '", name, "': cannot be stored: ",
                         tensor.defined() ? "not dense, or its name is reserved" : "undefined"));
    entries.emplace_back(name, tensor.detach().cpu().contiguous());
  }
  std::stable_sort(entries.begin(), entries.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return a.second.element_size() > b.second.element_size();
  });
  return entries;
}

std::string header_of(const std::filesystem::path& path, const std::vector<NamedTensor>& entries,
                      const Content& content) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!content.metadata.empty()) header[metadata_key] = content.metadata;
  std::size_t offset = 0;
  for (const NamedTensor& entry : entries) {
    const std::size_t end = offset + entry.second.nbytes();
    header[entry.first] = {{"dtype", dtype_name(path, entry)},
                           {"shape", entry.second.sizes().vec()},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(
        detail::concat(path.string(), ": a name or note is not UTF-8: ", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > longest_header)
    throw CheckpointError(detail::concat(path.string(), ": the header has ", text.size(),
                                         " bytes, expected at most ", longest_header));
  return text;
}

}  // namespace

void write(const std::filesystem::path& path, const Content& content) {
  const std::vector<NamedTensor> entries = in_file_order(path, content);
  const std::string header = header_of(path, entries, content);
  const std::uint64_t length = header.size();

  detail::AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const NamedTensor& entry : entries)
    file.write(
        {static_cast<const std::byte*>(entry.second.const_data_ptr()), entry.second.nbytes()});
  file.commit();
}

}  // namespace lockstep::safetensors
