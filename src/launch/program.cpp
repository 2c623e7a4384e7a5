#include "launch/program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using std::filesystem::path;

/// Empty if the file can be executed, else why it cannot.
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
