#include "checkpoint/checkpoint_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_content.h"
#include "formats/atomic_file.h"
#include "formats/safetensors_header.h"
#include "formats/safetensors_reader.h"
#include "group/gather_texts.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

namespace {

using safetensors::Entry;
using safetensors::Header;
using safetensors::Piece;

constexpr std::int64_t chunk_bytes = std::int64_t{1} << 20;

at::Tensor empty_bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

/// The bytes of a tensor as a tensor that shares them.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())},
                       at::kByte);
}

/// A tensor of the file, and who has it.
struct Place {
  int rank;
  Entry entry;
};

/// A rank's message about its tensors: how many bytes they have, then their header.
std::string describe(const std::vector<Piece>& pieces, const std::string& file) {
  Header header;
  for (const Piece& piece : pieces) header.entries.push_back(piece.entry);
  std::string text = safetensors::write_header(header, file);
  const std::uint64_t bytes = header.entries.empty() ? 0 : header.entries.back().end;
  std::memcpy(text.data(), &bytes, safetensors::length_bytes);
  return text;
}

/// All ranks' tensors in the order of the file, the same on every rank.
std::vector<Place> places_of(const std::vector<std::string>& descriptions,
                             const std::string& file) {
  std::vector<Place> places;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, descriptions[rank].data(), safetensors::length_bytes);
    Header header = safetensors::parse_header(
        std::string_view(descriptions[rank]).substr(safetensors::length_bytes), bytes, file);
    for (Entry& entry : header.entries)
      places.push_back({.rank = static_cast<int>(rank), .entry = std::move(entry)});
  }
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return safetensors::before_in_file(a.entry, b.entry);
  });
  return places;
}

/// Keeps the first error of what only rank 0 does while others wait for it to go on.
class Attempts {
 public:
  template <class Function>
  void operator()(const Function& fn) {
    if (error_) return;
    try {
      fn();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace

void write_together(const std::filesystem::path& path, const safetensors::Content& own,
                    const Group& group) {
  const bool writes = group.rank() == 0;
  std::vector<Piece> pieces;
  std::string description;
  all_or_none(group, [&] {
    pieces = safetensors::pieces_of(own, path.string());
    description = describe(pieces, path.string());
  });
  const std::vector<Place> places = places_of(gather(description, group), path.string());

  std::optional<AtomicFile> file;
  const at::Tensor chunk = empty_bytes(chunk_bytes);
  all_or_none(group, [&] {
    if (!writes) return;
    Header header{.entries = {}, .metadata = own.metadata};
    for (const Place& place : places) header.entries.push_back(place.entry);
    const std::string first = safetensors::write_header(header, path.string());
    file.emplace(path);
    file->write(std::as_bytes(std::span(first)));
  });

  Attempts attempt;
  auto next = pieces.begin();
  for (const Place& place : places) {
    const bool mine = place.rank == group.rank();
    const at::Tensor values = mine ? next++->values : at::Tensor();
    if (place.rank == 0) {
      if (writes) attempt([&] { file->write(safetensors::bytes_of(values)); });
      continue;
    }
    if (!mine && !writes) continue;
    const auto size = static_cast<std::int64_t>(place.entry.end - place.entry.begin);
    for (std::int64_t begin = 0; begin < size; begin += chunk_bytes) {
      const std::int64_t count = std::min(chunk_bytes, size - begin);
      if (mine) {
        group.send(as_bytes(values).narrow(0, begin, count), 0).wait();
      } else {
        const at::Tensor received = chunk.narrow(0, 0, count);
        group.recv(received, place.rank).wait();
        attempt([&] { file->write(safetensors::bytes_of(received)); });
      }
    }
  }
  all_or_none(group, [&] {
    attempt.rethrow();
    if (writes) file->commit();
  });
}

safetensors::Content collect(const std::filesystem::path& path, safetensors::Content own,
                             const Group& group) {
  const bool collects = group.rank() == 0;
  std::vector<Piece> pieces;
  std::string description;
  all_or_none(group, [&] {
    if (!collects) pieces = safetensors::pieces_of(own, path.string());
    description = describe(pieces, path.string());
  });
  const std::vector<Place> places = places_of(gather(description, group), path.string());
  std::vector<at::Tensor> received;
  all_or_none(group, [&] {
    for (const Place& place : places)
      received.push_back(collects ? safetensors::empty_for(place.entry, path.string())
                                  : at::Tensor());
  });

  auto next = pieces.begin();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool mine = places[i].rank == group.rank();
    const at::Tensor values = mine ? next++->values : received[i];
    if (collects) own.tensors.emplace(places[i].entry.name, values);
    if (places[i].entry.begin == places[i].entry.end) continue;
    if (mine)
      group.send(as_bytes(values), 0).wait();
    else if (collects)
      group.recv(as_bytes(values), places[i].rank).wait();
  }
  return own;
}

safetensors::Content read_together(const std::filesystem::path& path, const Group& group) {
  const bool reads = group.rank() == 0;
  std::unique_ptr<safetensors::Reader> reader;
  const at::Tensor sizes = at::empty({2}, at::kLong);
  auto* const size = sizes.mutable_data_ptr<std::int64_t>();
  all_or_none(group, [&] {
    if (!reads) return;
    reader = std::make_unique<safetensors::Reader>(path);
    size[0] = static_cast<std::int64_t>(reader->text().size());
    size[1] = static_cast<std::int64_t>(reader->value_bytes());
  });
  group.broadcast(sizes).wait();
  std::string text;
  all_or_none(group, [&] {
    if (reads)
      text = reader->text();
    else
      text.resize(static_cast<std::size_t>(size[0]));
  });
  group.broadcast(at::from_blob(text.data(), {size[0]}, at::kByte)).wait();

  Header header;
  std::optional<std::int64_t> saved_by;
  const auto taker = [&](const Entry& entry) {
    return taker_of(entry.name, saved_by, group.size());
  };
  std::vector<at::Tensor> own;  // for each entry, undefined for what others take
  at::Tensor others;
  all_or_none(group, [&] {
    header = safetensors::parse_header(text, static_cast<std::uint64_t>(size[1]), path.string());
    saved_by = ranks_of(header.metadata);
    std::int64_t largest = 0;
    for (const Entry& entry : header.entries) {
      const bool mine = taker(entry).value_or(group.rank()) == group.rank();
      own.push_back(mine ? safetensors::empty_for(entry, path.string()) : at::Tensor());
      if (!mine) largest = std::max(largest, static_cast<std::int64_t>(entry.end - entry.begin));
    }
    if (reads)
      others = safetensors::empty_for({.name = "of another rank",
                                       .dtype = at::kByte,
                                       .shape = {largest},
                                       .end = static_cast<std::uint64_t>(largest)},
                                      path.string());
  });

  safetensors::Content content{
      .tensors = {}, .metadata = std::move(header.metadata), .checked = header.checked};
  Attempts attempt;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Entry& entry = header.entries[i];
    const std::optional<int> to = taker(entry);
    const bool mine = own[i].defined();
    if (mine) content.tensors.emplace(entry.name, own[i]);
    const auto count = static_cast<std::int64_t>(entry.end - entry.begin);
    if (count == 0 || (!mine && !reads)) continue;
    const at::Tensor bytes = mine ? as_bytes(own[i]) : others.narrow(0, 0, count);
    if (reads) attempt([&] { reader->read(entry, safetensors::writable_bytes_of(bytes)); });
    if (!to)
      group.broadcast(bytes).wait();
    else if (reads && *to > 0)
      group.send(bytes, *to).wait();
    else if (!reads)
      group.recv(bytes, 0).wait();
  }
  all_or_none(group, [&] { attempt.rethrow(); });
  return content;
}

}  // namespace lockstep::detail
