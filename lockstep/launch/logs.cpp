#include "lockstep/launch/logs.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep::launch {

using detail::concat;

void Log::write(std::string_view bytes) noexcept {
  while (file_ && !bytes.empty()) {
    const auto count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      if (error_ == 0) error_ = errno;
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending) {
  if (folder.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InvalidArgument(
        concat("cannot make the log directory '", folder.string(), "': ", error.message()));
  }
  const auto file = folder / concat("rank-", rank, '.', ending);
  Descriptor log(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!log) {
    throw InvalidArgument(
        concat("cannot write the log file '", file.string(), "': ", std::strerror(errno)));
  }
  return {std::move(log), file};
}

}  // namespace lockstep::launch
