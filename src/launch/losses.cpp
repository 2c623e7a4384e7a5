#include "launch/losses.h"

#include <algorithm>
#include <cstring>

#include "core/text.h"

namespace lockstep::inline v0_2::launch {

using detail::concat;

void Losses::add(const std::string& place, int error) {
  places_[std::strerror(error)].push_back(place);
}

void Losses::add_unread(const std::string& place, std::size_t bytes) {
  places_[concat("its reader did not take ", bytes, " bytes")].push_back(place);
}

std::string Losses::text() const {
  constexpr std::size_t most = 8;
  std::string text;
  for (const auto& [reason, places] : places_) {
    if (!text.empty()) text += "; ";
    for (std::size_t i = 0; i < std::min(places.size(), most); ++i) {
      text += concat(i == 0 ? "" : ", ", places[i]);
    }
    if (places.size() > most) text += concat(" and ", places.size() - most, " more");
    text += concat(": ", reason);
  }
  return text;
}

}  // namespace lockstep::launch
