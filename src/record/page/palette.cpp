#include "record/page/palette.h"

#include <cmath>

#include "core/text.h"

namespace lockstep::inline v0_2::record {
namespace {

constexpr std::size_t chosen = 7;  ///< colours --quantity-0, --quantity-1, … of the page

}  // namespace

std::string Palette::colour(const std::string& quantity) {
  const auto number = numbers_.try_emplace(quantity, numbers_.size()).first->second;
  if (number < chosen) return detail::concat("var(--quantity-", number, ")");
  // Multiples of the golden angle: any number of hues, each far from those before it.
  const double hue = std::fmod(static_cast<double>(number) * 137.508, 360);
  return detail::concat("hsl(", hue, " 60% var(--lightness))");
}

}  // namespace lockstep::record
