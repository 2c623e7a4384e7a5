#include "formats/safetensors_piece.h"

#include <algorithm>
#include <utility>

#include "core/digest.h"
#include "core/text.h"
#include "formats/safetensors_format.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::safetensors {

std::vector<Piece> pieces_of(const Content& content, std::string_view file) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : content.tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || name == metadata_key)
      throw CheckpointError(
          detail::concat(file, ": tensor '", name, "': cannot be stored: ",
                         tensor.defined() ? "not dense, or its name is reserved" : "undefined"));
    at::Tensor values = tensor.detach().cpu().contiguous();
    Entry entry{.name = name, .dtype = values.scalar_type(), .shape = values.sizes().vec()};
    entry.digest = detail::digest(bytes_of(values));
    pieces.push_back({.entry = std::move(entry), .values = std::move(values)});
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return before_in_file(a.entry, b.entry); });
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

}  // namespace lockstep::safetensors
