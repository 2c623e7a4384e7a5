#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline v0_2::detail {

/// The first line of a file; empty if there is none.
std::string first_line(const std::filesystem::path& file);

/// Why ::open() of a file to write failed with this errno, for messages. O_NOFOLLOW refuses a
/// symbolic link, because another user could have pointed it to any file.
std::string why_not_opened(const std::filesystem::path& file, int error);

/// Whether both descriptors are of one file.
bool same_file(int first, int second);
/// Whether the path itself, no link, names the file of the descriptor.
bool same_file(int fd, const std::filesystem::path& path);

}  // namespace lockstep::detail
