#pragma once

#include <string_view>

namespace lockstep::detail {

/// Deeper texts than a checkpoint's would fill the stack when they are parsed.
/// Throws: CheckpointError that begins with where.
void check_json_depth(std::string_view text, std::string_view where);

}  // namespace lockstep::detail
