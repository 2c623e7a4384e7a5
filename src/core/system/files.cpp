#include "core/system/files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "core/text.h"

namespace lockstep::inline v0_2::detail {
namespace {

bool are_equal(const struct stat& first, const struct stat& second) {
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string why_not_opened(const std::filesystem::path& file, int error) {
  std::error_code none;
  const auto target = std::filesystem::read_symlink(file, none);
  if (error != ELOOP || none) return std::strerror(error);
  return concat("it is a symbolic link to ", target.string(),
                ", expected a file; remove it, or name another folder");
}

bool same_file(int first, int second) {
  struct stat a {
  }, b{};
  return ::fstat(first, &a) == 0 && ::fstat(second, &b) == 0 && are_equal(a, b);
}

bool same_file(int fd, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         are_equal(opened, named);
}

}  // namespace lockstep::detail
