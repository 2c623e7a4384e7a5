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
#include "comm/first_error.h"
#include "core/system/files.h"
#include "formats/safetensors.h"
#include "group/gather.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2::detail {

namespace {

using safetensors::Entry;
using safetensors::Header;
using safetensors::Piece;

constexpr std::int64_t chunk_bytes = std::int64_t{1} << 20;

/// A byte tensor that shares the memory of a tensor.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())},
                       at::kByte);
}

/// A tensor of the file, and the rank that has it.
struct RankEntry {
  int rank;
  Entry entry;
};

/// A rank's tensors, and those of all ranks in the order of the file, the same on every rank.
struct RankTensors {
  std::vector<Piece> own;
  std::vector<RankEntry> all;
};

/// Ranks: all.
/// Throws: CheckpointError, on every rank, with file and tensor.
RankTensors tensors_of_ranks(const safetensors::Content& own, const std::string& file,
                             const Group& group) {
  RankTensors tensors;
  std::string text;  // the number of bytes of this rank's tensors, then their header
  all_or_none(group, [&] {
    tensors.own = safetensors::pieces_of(own, file);
    Header header;
    for (const Piece& piece : tensors.own) header.entries.push_back(piece.entry);
    text = safetensors::write_header(header, file);
    const std::uint64_t bytes = header.entries.empty() ? 0 : header.entries.back().end;
    std::memcpy(text.data(), &bytes, safetensors::length_bytes);
  });
  const std::vector<std::string> texts = gather(text, group);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, texts[rank].data(), safetensors::length_bytes);
    Header header = safetensors::parse_header(
        std::string_view(texts[rank]).substr(safetensors::length_bytes), bytes, file);
    for (Entry& entry : header.entries)
      tensors.all.push_back({.rank = static_cast<int>(rank), .entry = std::move(entry)});
  }
  std::ranges::stable_sort(tensors.all, safetensors::before_in_file, &RankEntry::entry);
  return tensors;
}

}  // namespace

void write_from_all_ranks(const std::filesystem::path& path, const safetensors::Content& own,
                          const Group& group) {
  const bool writes = group.rank() == 0;
  const RankTensors tensors = tensors_of_ranks(own, path.string(), group);

  std::optional<AtomicFile> file;
  const at::Tensor chunk = at::empty({chunk_bytes}, at::kByte);
  all_or_none(group, [&] {
    if (!writes) return;
    Header header{.entries = {}, .metadata = own.metadata};
    for (const RankEntry& item : tensors.all) header.entries.push_back(item.entry);
    const std::string first = safetensors::write_header(header, path.string());
    file.emplace(path, AtomicFile::Use::checkpoint);
    file->write(first);
  });

  auto next = tensors.own.begin();
  for (const RankEntry& item : tensors.all) {
    const bool is_own = item.rank == group.rank();
    const at::Tensor values = is_own ? next++->values : at::Tensor();
    if (item.rank == 0) {
      if (writes) file->write(safetensors::bytes_of(values));
      continue;
    }
    if (!is_own && !writes) continue;
    const auto size = static_cast<std::int64_t>(item.entry.end - item.entry.begin);
    for (std::int64_t begin = 0; begin < size; begin += chunk_bytes) {
      const std::int64_t count = std::min(chunk_bytes, size - begin);
      if (is_own) {
        group.send(as_bytes(values).narrow(0, begin, count), 0).wait();
      } else {
        const at::Tensor received = chunk.narrow(0, 0, count);
        group.recv(received, item.rank).wait();
        file->write(safetensors::bytes_of(received));
      }
    }
  }
  all_or_none(group, [&] {
    if (writes) file->commit();
  });
}

safetensors::Content gather_content(const std::filesystem::path& path, safetensors::Content own,
                                    const Group& group) {
  const bool collects = group.rank() == 0;
  const safetensors::Content none;
  const RankTensors tensors = tensors_of_ranks(collects ? none : own, path.string(), group);
  std::vector<at::Tensor> received;
  all_or_none(group, [&] {
    for (const RankEntry& item : tensors.all)
      received.push_back(collects ? safetensors::empty_for(item.entry, path.string())
                                  : at::Tensor());
  });

  auto next = tensors.own.begin();
  for (std::size_t i = 0; i < tensors.all.size(); ++i) {
    const auto& [rank, entry] = tensors.all[i];
    const bool is_own = rank == group.rank();
    const at::Tensor values = is_own ? next++->values : received[i];
    if (collects) own.tensors.emplace(entry.name, values);
    if (entry.begin == entry.end) continue;
    if (is_own)
      group.send(as_bytes(values), 0).wait();
    else if (collects)
      group.recv(as_bytes(values), rank).wait();
  }
  return own;
}

safetensors::Content read_on_all_ranks(const std::filesystem::path& path, const Group& group) {
  const bool reads = group.rank() == 0;
  std::unique_ptr<safetensors::Reader> reader;
  all_or_none(group, [&] {
    if (reads) reader = std::make_unique<safetensors::Reader>(path);
  });
  const std::string text = gather(reads ? reader->text() : std::string(), group)[0];
  const auto value_bytes = gather_values(reads ? reader->value_bytes() : 0, group)[0];

  Header header;
  std::optional<std::int64_t> saved_by;
  const auto receiver = [&](const Entry& entry) {
    return receiver_of(entry.name, saved_by, group.size());
  };
  std::vector<at::Tensor> own;  // per entry; undefined if another rank receives it
  at::Tensor others;
  all_or_none(group, [&] {
    header = safetensors::parse_header(text, value_bytes, path.string());
    saved_by = ranks_of(header.metadata);
    std::int64_t max_bytes = 0;
    for (const Entry& entry : header.entries) {
      const bool is_own = receiver(entry).value_or(group.rank()) == group.rank();
      own.push_back(is_own ? safetensors::empty_for(entry, path.string()) : at::Tensor());
      if (!is_own)
        max_bytes = std::max(max_bytes, static_cast<std::int64_t>(entry.end - entry.begin));
    }
    if (reads)
      others = safetensors::empty_for({.name = "of another rank",
                                       .dtype = at::kByte,
                                       .shape = {max_bytes},
                                       .end = static_cast<std::uint64_t>(max_bytes)},
                                      path.string());
  });

  safetensors::Content content{
      .tensors = {}, .metadata = std::move(header.metadata), .checked = header.checked};
  // Rank 0 sends what other ranks wait for also after an error.
  std::exception_ptr first_error;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Entry& entry = header.entries[i];
    const std::optional<int> to = receiver(entry);
    const bool is_own = own[i].defined();
    if (is_own) content.tensors.emplace(entry.name, own[i]);
    const auto count = static_cast<std::int64_t>(entry.end - entry.begin);
    if (count == 0 || (!is_own && !reads)) continue;
    const at::Tensor bytes = is_own ? as_bytes(own[i]) : others.narrow(0, 0, count);
    try {
      if (reads && !first_error) reader->read(entry, safetensors::writable_bytes_of(bytes));
    } catch (...) {
      first_error = std::current_exception();
    }
    or_own_error(first_error, [&] {
      if (!to)
        group.broadcast(bytes).wait();
      else if (reads && *to > 0)
        group.send(bytes, *to).wait();
      else if (!reads)
        group.recv(bytes, 0).wait();
    });
  }
  all_or_none(group, [&] {
    if (first_error) std::rethrow_exception(first_error);
  });
  return content;
}

}  // namespace lockstep::detail
