#include "launch/table.h"

#include <algorithm>

namespace lockstep::inline v0_2::launch {

std::string table(const std::string& title, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    // The last cell of a row is not padded, and a long one pushes nothing aside.
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = title + '\n';
  for (const auto& row : rows) {
    text += ' ';
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += ' ' + row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 1, ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace lockstep::launch
