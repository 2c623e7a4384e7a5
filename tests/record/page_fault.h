#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::testing {

/// The first thing that an XML parser would refuse: tags that are not closed in order, stray signs.
inline std::string page_fault(std::string page) {
  const std::string begin = "<!DOCTYPE html>\n";
  if (!page.starts_with(begin)) return "no document type";
  const auto style = page.find("<style>");
  const auto style_end = page.find("</style>");
  page.erase(style + 7, style_end - style - 7);
  page.erase(0, begin.size());
  std::vector<std::string> open;
  for (std::size_t at = 0; at < page.size();) {
    if (page[at] == '>' || (page[at] == '&' && page.find(';', at) > at + 5)) {
      return "stray sign before " + page.substr(at, 20);
    }
    if (page[at] != '<') {
      ++at;
      continue;
    }
    const auto end = page.find('>', at);
    if (end == page.npos) return "open tag";
    const auto tag = page.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quote in " + tag;
    const auto name =
        tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" \n/", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected " + tag;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

}  // namespace lockstep::testing
