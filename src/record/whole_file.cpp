#include "record/whole_file.h"

#include <cerrno>
#include <cstring>
#include <locale>
#include <system_error>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::record {

WholeFile::WholeFile(std::filesystem::path path)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  // A fifo left there would wait for its reader, a link would lead elsewhere.
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
  out_.imbue(std::locale::classic());
  errno = 0;
  out_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!out_) fail();
}

WholeFile::~WholeFile() {
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void WholeFile::commit() {
  errno = 0;
  out_.close();
  if (!out_) fail();
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) {
    throw Error(detail::concat(path_.string(), ": cannot write: ", error.message()));
  }
  committed_ = true;
}

void WholeFile::fail() const {
  // A stream that has failed before knows no reason any more.
  throw Error(detail::concat(path_.string(), ": cannot write: ",
                             errno != 0 ? std::strerror(errno) : "the disk may be full"));
}

}  // namespace lockstep::record
