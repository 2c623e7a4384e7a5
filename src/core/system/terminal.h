#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Whether the descriptor is a terminal that can move its cursor: TERM is set and is not "dumb".
bool is_capable_terminal(int fd);

/// Whether text for the descriptor may have colours: a capable terminal of a user who does not
/// refuse them by NO_COLOR.
/// Source: no-color.org
bool shows_colour(int fd);

/// The columns of the terminal; 0 where the descriptor is none, or has no width.
std::size_t terminal_width(int fd);

using Row = std::vector<std::string>;

/// Formats a title and rows, with each column as wide as its widest cell.
std::string table(const std::string& title, const std::vector<Row>& rows);

/// A rank's line for display between lines of other ranks. Keeps tabs and colours (SGR sequences).
/// Removes all other control characters and escape sequences, which could move the cursor, clear
/// the screen, or set the terminal's title. Resets a colour at the end of the line. Of a sequence
/// that begins with a control character of two bytes in UTF-8, removes that character only.
/// Source: ECMA-48, and xterm's control sequences.
std::string plain_line(std::string_view line);

enum class Tone : std::uint8_t {
  error,   ///< bold red
  strong,  ///< bold
  label    ///< cyan
};

/// The text in the tone where colour is true, else the text alone.
std::string in_tone(std::string_view text, Tone tone, bool colour);

}  // namespace lockstep::detail
