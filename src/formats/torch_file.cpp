#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/system/files.h"
#include "core/text.h"
#include "formats/pickle.h"
#include "formats/state_dict.h"
#include "lockstep/error.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2 {

namespace {

using caffe2::serialize::PyTorchStreamReader;
using caffe2::serialize::PyTorchStreamWriter;
using detail::concat;

constexpr const char* pickle_record = "data.pkl";
constexpr const char* byte_order_record = "byteorder";

std::string storage_record(const std::string& key) { return "data/" + key; }

template <class Number>
Number number_at(const std::string& bytes, std::size_t place) {
  Number number = 0;
  if (place + sizeof(Number) <= bytes.size())
    std::memcpy(&number, bytes.data() + place, sizeof(Number));
  return number;
}

// Note [Sizes in zip files]
// LibTorch takes memory for what the directory of a zip file says of a record, some of which it
// reads before TorchFile can look at its size. It inflates compressed records. torch.save does not
// compress, so no record can be larger than the file.
// Source: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.12 to 4.3.16

/// Throws: CheckpointError if the file is no zip file, or its directory has a record that is larger
/// than the file.
void check_zip(const std::filesystem::path& path) {
  constexpr std::size_t end_bytes = 22, most_comment = 0xffff, locator_bytes = 20, entry_bytes = 46;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw CheckpointError(error ? "cannot open: " + error.message() : "is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CheckpointError("cannot open");
  const std::size_t size = std::filesystem::file_size(path);
  const auto read = [&](std::uint64_t offset, std::uint64_t count) {
    std::string bytes(offset < size ? std::min(count, size - offset) : 0, '\0');
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  };
  if (!read(0, 2).starts_with("PK"))
    throw CheckpointError(
        "is not a zip file of torch.save; save files of PyTorch before 1.6 again");
  const std::size_t last = std::min(size, end_bytes + most_comment + locator_bytes);
  const std::string tail = read(size - last, last);
  const std::size_t end = tail.rfind("PK\5\6", last < end_bytes ? 0 : last - end_bytes);
  if (end == std::string::npos) return;  // LibTorch says so
  std::uint64_t length = number_at<std::uint32_t>(tail, end + 12);
  std::uint64_t place = number_at<std::uint32_t>(tail, end + 16);
  if (end >= locator_bytes && tail.compare(end - locator_bytes, 4, "PK\6\7") == 0) {
    const std::string wide = read(number_at<std::uint64_t>(tail, end - locator_bytes + 8), 56);
    length = number_at<std::uint64_t>(wide, 40);
    place = number_at<std::uint64_t>(wide, 48);
  }
  const std::string directory = read(place, length);
  for (std::size_t at = 0; directory.compare(at, 4, "PK\1\2") == 0;) {
    const auto record_size = number_at<std::uint32_t>(directory, at + 24);
    const auto name_bytes = number_at<std::uint16_t>(directory, at + 28);
    if (record_size > size)
      throw CheckpointError(
          concat(directory.substr(std::min(at + entry_bytes, directory.size()), name_bytes),
                 ": expected at most ", size, " bytes, found ", record_size));
    at += entry_bytes + name_bytes + number_at<std::uint16_t>(directory, at + 30) +
          number_at<std::uint16_t>(directory, at + 32);
    at = std::min(at, directory.size());
  }
}

class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path)
      : bytes_(std::filesystem::file_size(path)), reader_(path.string()) {}

  c10::IValue read(detail::SkippedValues& skipped) {
    if (reader_.hasRecord("constants.pkl"))
      throw CheckpointError("is a TorchScript archive, expected a state dict of torch.save");
    if (!reader_.hasRecord(pickle_record))
      throw CheckpointError(concat("found no ", pickle_record, ": is not a file of torch.save"));
    if (reader_.hasRecord(byte_order_record) && text(byte_order_record) != "little")
      throw CheckpointError("expected values in little-endian order, found another byte order");
    return detail::unpickle(
        text(pickle_record),
        [&](const std::string& key, at::ScalarType dtype, std::int64_t count) {
          return storage(key, dtype, count);
        },
        skipped);
  }

 private:
  std::string text(const std::string& record) {
    std::string bytes(size_of(record), '\0');
    reader_.getRecord(record, bytes.data(), bytes.size());
    return bytes;
  }

  /// See Note [Sizes in zip files].
  std::size_t size_of(const std::string& record) {
    const std::size_t size = reader_.getRecordSize(record);
    if (size > bytes_)
      throw CheckpointError(concat(record, ": expected at most ", bytes_, " bytes, found ", size));
    return size;
  }

  at::Tensor storage(const std::string& key, at::ScalarType dtype, std::int64_t count) {
    if (const auto found = storages_.find(key); found != storages_.end()) {
      if (found->second.scalar_type() != dtype || found->second.numel() != count)
        throw CheckpointError(concat("storage '", key, "': has two different dtypes or sizes"));
      return found->second;
    }
    const std::string record = storage_record(key);
    if (!reader_.hasRecord(record)) throw CheckpointError(concat("storage '", key, "' is missing"));
    const std::size_t size = size_of(record);
    const std::size_t width = c10::elementSize(dtype);
    if (count < 0 || size % width != 0 || size / width != static_cast<std::size_t>(count))
      throw CheckpointError(concat("storage '", key, "': expected ", count, ' ', dtype,
                                   " elements, found ", size, " bytes"));
    // Entries of a malicious zip file may share bytes. Those of torch.save do not.
    if (size > bytes_ - stored_)
      throw CheckpointError(concat("storage '", key, "': expected at most ", bytes_,
                                   " bytes for all storages, found more"));
    stored_ += size;
    const at::Tensor values = at::empty({count}, dtype);
    if (count > 0) reader_.getRecord(record, values.mutable_data_ptr(), size);
    return storages_.emplace(key, values).first->second;
  }

  std::size_t bytes_;       ///< of the file
  std::size_t stored_ = 0;  ///< of the storages read so far
  PyTorchStreamReader reader_;
  std::map<std::string, at::Tensor> storages_;
};

}  // namespace

c10::IValue read_torch_file(const std::filesystem::path& path,
                            std::map<std::string, std::string>* skipped) {
  detail::SkippedValues found;
  c10::IValue value = detail::with_file_name(path, [&] {
    check_zip(path);
    return TorchFile(path).read(found);
  });
  if (skipped != nullptr) {
    *skipped = std::move(found);
    return value;
  }
  const auto text = detail::joined(found, ", ", [](const auto& entry) {
    return concat('\'', entry.first, "' (", entry.second, ')');
  });
  if (!found.empty())
    log::notice(concat("read_torch_file: ", path.string(),
                       ": skipped what is not supported: ", text.substr(0, 1000)));
  return value;
}

void write_torch_file(const std::filesystem::path& path, const c10::IValue& value) {
  std::vector<at::Tensor> storages;
  const std::string description =
      detail::with_file_name(path, [&] { return detail::pickle(value, storages); });
  detail::AtomicFile file(path, detail::AtomicFile::Use::checkpoint);
  // An exception must not pass through LibTorch's writer: parts of it are C, and its destructor
  // would continue to write. AtomicFile::write() throws none.
  PyTorchStreamWriter writer([&](const void* bytes, std::size_t count) {
    file.write({static_cast<const std::byte*>(bytes), count});
    return count;
  });
  writer.writeRecord(pickle_record, description.data(), description.size());
  const std::string order = "little";
  writer.writeRecord(byte_order_record, order.data(), order.size());
  for (std::size_t key = 0; key < storages.size(); ++key)
    writer.writeRecord(storage_record(std::to_string(key)), storages[key].const_data_ptr(),
                       storages[key].nbytes());
  writer.writeEndOfFile();
  file.commit();
}

}  // namespace lockstep
