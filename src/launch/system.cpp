#include "launch/system.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {

void throw_system(std::string_view what) {
  const int error = errno;
  throw CommError(detail::concat("the launcher cannot ", what, ": ", std::strerror(error)));
}

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_system("make a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

FileLimit::FileLimit(unsigned long needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) throw_system("read its limit of open files");
  soft_ = limit.rlim_cur;
  hard_ = limit.rlim_max;
  if (soft_ >= needed) return;
  if (hard_ < needed) {
    throw CommError(detail::concat("the launcher needs ", needed,
                                   " open files for this many ranks, but the limit is ", hard_,
                                   " (ulimit -Hn)"));
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) throw_system("raise its limit of open files");
  raised_ = true;
}

FileLimit::~FileLimit() { restore(); }

void FileLimit::restore() const noexcept {
  if (!raised_) return;
  const rlimit limit{.rlim_cur = soft_, .rlim_max = hard_};
  setrlimit(RLIMIT_NOFILE, &limit);
}

Subreaper::Subreaper() {
  prctl(PR_GET_CHILD_SUBREAPER, &before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }

void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is fd, as all below it are open.
    if (open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) throw_system("open /dev/null");
  }
}

namespace {

using detail::concat;
using std::filesystem::path;

/// The reason why the file cannot be executed; empty if it can.
std::string obstacle(const path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) return error ? error.message() : std::strerror(ENOENT);
  if (std::filesystem::is_directory(status)) return "it is a directory";
  if (!std::filesystem::is_regular_file(status)) return "it is not a regular file";
  if (access(file.c_str(), X_OK) != 0) {
    return errno == EACCES ? "it is not executable (chmod +x)" : std::strerror(errno);
  }
  return {};
}

}  // namespace

path find_program(const std::string& name, std::string_view search_path) {
  if (name.empty()) throw InvalidArgument("no program given to run");
  if (name.find('/') != std::string::npos) {
    const auto why = obstacle(name);
    if (!why.empty()) throw InvalidArgument(concat("cannot run '", name, "': ", why));
    return name;
  }
  std::string why;
  while (!search_path.empty()) {
    const auto colon = search_path.find(':');
    const auto folder = search_path.substr(0, colon);
    search_path = colon == std::string_view::npos ? "" : search_path.substr(colon + 1);
    const auto file = path(folder.empty() ? "." : folder) / name;
    const auto found = obstacle(file);
    if (found.empty()) return file;
    if (why.empty() && std::filesystem::exists(file)) why = concat(file.string(), ": ", found);
  }
  if (why.empty()) why = "no such program in PATH";
  const bool here = obstacle(path(".") / name).empty();
  throw InvalidArgument(concat("cannot run '", name, "': ", why,
                               here ? concat("; did you mean ./", name, "?") : std::string()));
}

}  // namespace lockstep::launch
