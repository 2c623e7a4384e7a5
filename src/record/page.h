#pragma once

#include <string>
#include <string_view>

namespace lockstep::inline v0_2::record {

/// Text escaped for use between tags and in attributes. A question mark replaces invalid UTF-8 and
/// control characters.
std::string escaped(std::string_view text);
/// The same of a name, which a browser may break after each '_'.
std::string escaped_name(std::string_view name);

/// "1.23 GB", by powers of a thousand.
std::string bytes_text(double bytes);

/// Four digits that count, as "0.0123", "98.12", "12345".
std::string number_text(double value);

/// "87.5 %" of 0.875.
std::string percent_text(double share);

/// An HTML page around a body. refresh_seconds: after so long a browser loads it again; 0 for
/// never.
std::string html_page(const std::string& title, const std::string& body, int refresh_seconds = 0);

}  // namespace lockstep::record
