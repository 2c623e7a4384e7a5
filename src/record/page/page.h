#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::record {

/// Text escaped for use between tags and in attributes. A question mark replaces invalid UTF-8 and
/// control characters.
std::string escaped(std::string_view text);

/// "1.23 GB", by powers of a thousand.
std::string bytes_text(double bytes);

/// Four digits that count, as "0.0123", "98.12", "12345".
std::string number_text(double value);

/// "12.3 ms" of 0.0123.
std::string milliseconds_text(double seconds);
/// "87.5 %" of 0.875.
std::string percent_text(double share);

/// The values of a template's names. A list has the values of each of its elements.
struct Values {
  Values(std::initializer_list<std::pair<const std::string, std::string>> named) : texts(named) {}

  std::map<std::string, std::string, std::less<>> texts;
  std::map<std::string, std::vector<Values>, std::less<>> lists = {};
};
/// A list of texts, each of this name.
std::vector<Values> list_of(const std::string& name, const std::vector<std::string>& texts);

/// The template with the values at the places of their names. {{name}} is text, which is escaped,
/// and {{&name}} markup. The section {{#name}}…{{/#name}} appears for each element of a list, whose
/// names come before those around it. {{?name}}…{{/?name}} appears unless the text or list is
/// empty.
std::string filled(std::string_view text, const Values& values);

extern const char* const page_template;   ///< of every page
extern const char* const chart_template;  ///< of a chart

}  // namespace lockstep::record
