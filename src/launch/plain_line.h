#pragma once

#include <string>
#include <string_view>

namespace lockstep::inline v0_2::launch {

/// A rank's line as it is shown beside those of other ranks. Tabs and colours (SGR sequences) stay,
/// all other control characters and escape sequences are left out: they would move the cursor,
/// clear the screen, or set the terminal's title. A colour that the line leaves on is reset.
/// Source: ECMA-48, and xterm's control sequences.
std::string plain_line(std::string_view line);

}  // namespace lockstep::launch
