#include "lockstep/launch/losses.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/text.h"

namespace lockstep::launch {

using detail::concat;

void Losses::add(const std::string& place, int error) { places_[error].push_back(place); }

std::string Losses::text() const {
  constexpr std::size_t most = 8;
  std::string text;
  for (const auto& [error, places] : places_) {
    if (!text.empty()) text += "; ";
    for (std::size_t i = 0; i < std::min(places.size(), most); ++i) {
      text += concat(i == 0 ? "" : ", ", places[i]);
    }
    if (places.size() > most) text += concat(" and ", places.size() - most, " more");
    text += concat(": ", std::strerror(error));
  }
  return text;
}

}  // namespace lockstep::launch
