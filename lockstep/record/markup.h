#pragma once

#include <string>
#include <string_view>

namespace lockstep::record {

/// Text as it may stand between tags and in attributes. What is no UTF-8 or a control character is
/// shown as a question mark.
std::string escaped(std::string_view text);

/// "1.23 GB", by powers of a thousand.
std::string bytes_text(double bytes);

/// Four digits that count, as "0.0123", "98.12", "12345".
std::string number_text(double value);

}  // namespace lockstep::record
