#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

using Row = std::vector<std::string>;

/// Formats a title and rows, with each column as wide as its widest cell.
std::string table(const std::string& title, const std::vector<Row>& rows);

/// Quotes a word for a shell, if it needs quotes.
std::string quoted(const std::string& word);

}  // namespace lockstep::launch
