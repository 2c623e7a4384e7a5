#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2::launch {

/// The file that a program's name stands for: itself if it has a slash, else the first match in the
/// folders of search_path. Throws: InvalidArgument naming the program and why it cannot be
/// executed.
std::filesystem::path find_program(const std::string& name, std::string_view search_path);

}  // namespace lockstep::launch
