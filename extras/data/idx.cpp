#include "extras/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

std::filesystem::path find(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path plain = folder / name;
  const std::filesystem::path packed = folder / (name + ".gz");
  std::error_code ignored;
  if (std::filesystem::exists(plain, ignored)) return plain;
  if (std::filesystem::exists(packed, ignored)) return packed;
  throw DataError(concat("found neither ", plain.string(), " nor ", packed.string()));
}

}  // namespace

// zlib returns the bytes of uncompressed files unchanged.
IdxFile::IdxFile(const std::filesystem::path& folder, const std::string& name,
                 std::span<const std::uint32_t> inner)
    : path_(find(folder, name).string()), file_(gzopen(path_.c_str(), "rb"), gzclose) {
  if (!file_) throw DataError(concat(path_, ": cannot open: ", std::strerror(errno)));
  gzbuffer(file_.get(), 1 << 17);
  constexpr std::uint32_t unsigned_bytes = 0x0800;
  const std::uint32_t expected_magic =
      unsigned_bytes + 1 + static_cast<std::uint32_t>(inner.size());
  if (const std::uint32_t magic = read_u32("magic number"); magic != expected_magic)
    throw DataError(concat(path_, ": offset 0: expected magic number 0x", hex(expected_magic, 8),
                           ", found 0x", hex(magic, 8)));
  sizes_.push_back(read_u32("count"));
  for (const std::uint32_t expected : inner) {
    const std::size_t at = offset_;
    const std::uint32_t found = read_u32("dimension");
    if (found != expected)
      throw DataError(
          concat(path_, ": offset ", at, ": expected dimension ", expected, ", found ", found));
    sizes_.push_back(found);
    value_bytes_ *= found;
  }
  value_bytes_ *= sizes_.front();
  if (const std::size_t most = most_bytes(); header_bytes() + value_bytes_ > most)
    throw DataError(concat(path_, ": offset 4: expected items of at most ", most,
                           " bytes, which the file can hold, found ", sizes_.front(), " items of ",
                           header_bytes() + value_bytes_, " bytes"));
}

std::size_t IdxFile::read_some(std::span<std::uint8_t> bytes) {
  std::size_t got = 0;
  while (got < bytes.size()) {
    const auto wanted = static_cast<unsigned>(std::min<std::size_t>(bytes.size() - got, 1 << 20));
    const int count = gzread(file_.get(), bytes.data() + got, wanted);
    if (count > 0) {
      got += static_cast<std::size_t>(count);
      offset_ += static_cast<std::size_t>(count);
    }
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) text = std::strerror(errno);
    if (code != Z_OK && code != Z_STREAM_END)
      throw DataError(concat(path_, ": offset ", offset_, " (", gzoffset(file_.get()),
                             " in the compressed file): expected more data, found: ", text));
    if (count <= 0) break;
  }
  return got;
}

std::uint32_t IdxFile::read_u32(std::string_view what) {
  std::array<std::uint8_t, 4> bytes{};
  const std::size_t at = offset_;
  if (const std::size_t got = read_some(bytes); got < bytes.size())
    throw DataError(concat(path_, ": offset ", at, ": expected 4 bytes of ", what,
                           ", found the end after ", got));
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

std::size_t IdxFile::most_bytes() const {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path_, error);
  if (error) throw DataError(concat(path_, ": cannot read its size: ", error.message()));
  // deflate compresses at most 1032 bytes into one.
  return gzdirect(file_.get()) != 0 ? size : 1032 * size;
}

void IdxFile::read(std::span<std::uint8_t> values) {
  const std::size_t expected = header_bytes() + value_bytes_;
  if (read_some(values) < value_bytes_)
    throw DataError(concat(path_, ": offset ", offset_, ": expected ", expected, " bytes for ",
                           sizes_.front(), " items, found the end"));
  std::uint8_t beyond = 0;
  if (read_some(std::span(&beyond, 1)) != 0)
    throw DataError(concat(path_, ": offset ", expected, ": expected the end after ",
                           sizes_.front(), " items, found more bytes"));
}

}  // namespace lockstep::detail
