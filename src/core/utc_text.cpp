#include "core/utc_text.h"

#include <array>
#include <ctime>

namespace lockstep::inline v0_2::detail {

std::string utc_text(const char* format) {
  const auto now = std::time(nullptr);
  tm parts{};
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, gmtime_r(&now, &parts));
  return text.data();
}

}  // namespace lockstep::detail
