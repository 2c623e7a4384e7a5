#include "launch/job/logs.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "core/signal_safe_text.h"
#include "core/system/files.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {

using detail::concat;

void Losses::add(const std::string& place, int error) {
  places_[std::strerror(error)].push_back(place);
}

std::string Losses::text() const {
  return detail::joined(places_, "; ", [](const auto& entry) {
    constexpr std::size_t most = 8;
    const auto& [reason, places] = entry;
    const auto shown = std::span(places).first(std::min(places.size(), most));
    return concat(detail::joined(shown, ", "),
                  places.size() > most ? concat(" and ", places.size() - most, " more") : "", ": ",
                  reason);
  });
}

namespace {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InvalidArgument(
        concat("cannot create the log directory '", folder.string(), "': ", error.message()));
  }
}

}  // namespace

void Log::write(std::string_view bytes) noexcept {
  if (!file_ || detail::write_all(file_.get(), bytes.data(), bytes.size())) return;
  if (error_ == 0) error_ = errno;
}

std::unique_ptr<detail::FolderLock> lock_logs(const std::filesystem::path& folder,
                                              std::string_view run_id) {
  if (folder.empty()) return nullptr;
  make_folder(folder);
  try {
    return std::make_unique<detail::FolderLock>(folder, "run", run_id);
  } catch (const Error& error) {
    throw InvalidArgument(concat("--log-dir ", error.what()));
  }
}

Log open_log(const std::filesystem::path& folder, int rank, std::string_view ending) {
  if (folder.empty()) return {};
  make_folder(folder);
  const auto file = folder / concat("rank-", rank, '.', ending);
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(concat("cannot write the log file '", file.string(), "': ", why));
  };
  // Without O_NONBLOCK, opening a FIFO would wait for its reader.
  Descriptor log(
      open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  const int error = errno;
  struct stat status {};
  if (error == ELOOP) refuse(detail::why_not_opened(file, error));
  const bool known = (log ? fstat(log.get(), &status) : lstat(file.c_str(), &status)) == 0;
  if (known && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode)) {
    refuse("it is not a regular file; remove it, or name another folder");
  }
  if (!log) refuse(std::strerror(error));
  if (S_ISREG(status.st_mode) && ftruncate(log.get(), 0) != 0) refuse(std::strerror(errno));
  fcntl(log.get(), F_SETFL, fcntl(log.get(), F_GETFL) & ~O_NONBLOCK);
  return {std::move(log), file};
}

}  // namespace lockstep::launch
