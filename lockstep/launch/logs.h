#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/launch/descriptor.h"

namespace lockstep::launch {

/// Makes the folder and opens "rank-<rank>.<ending>" in it, empty. Nothing when folder is empty.
/// Throws: InvalidArgument naming the file and why it cannot be written.
Descriptor open_log(const std::filesystem::path& folder, int rank, std::string_view ending);

}  // namespace lockstep::launch
