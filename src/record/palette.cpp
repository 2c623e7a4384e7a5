#include "record/palette.h"

#include <cmath>

#include "core/text.h"

namespace lockstep::inline v0_2::record {
namespace {

constexpr std::size_t chosen = 7;  ///< colours --quantity-0, --quantity-1, … of the style

}  // namespace

const char* const palette_style = R"(
:root { --step: #1f2328; --compute: #2563eb; --loading: #0d9488; --communication: #c2700f;
  --waiting: #8b939d; --quantity-0: #7c3aed; --quantity-1: #4d7c0f; --quantity-2: #b91c4a;
  --quantity-3: #92400e; --quantity-4: #0891b2; --quantity-5: #c026d3; --quantity-6: #6b645d;
  --lightness: 38%; }
@media (prefers-color-scheme: dark) {
  :root { --step: #e6e8ea; --compute: #5b95f5; --loading: #2dc4b4; --communication: #f2a65a;
    --waiting: #7d8691; --quantity-0: #b79bff; --quantity-1: #a3d65c; --quantity-2: #f4799b;
    --quantity-3: #d9a066; --quantity-4: #5cc8dd; --quantity-5: #e88bf0; --quantity-6: #c8bfb6;
    --lightness: 70%; } }
)";

std::string Palette::colour(const std::string& quantity) {
  const auto number = numbers_.try_emplace(quantity, numbers_.size()).first->second;
  if (number < chosen) return detail::concat("var(--quantity-", number, ")");
  // Multiples of the golden angle: any number of hues, each far from those before it.
  const double hue = std::fmod(static_cast<double>(number) * 137.508, 360);
  return detail::concat("hsl(", hue, " 60% var(--lightness))");
}

}  // namespace lockstep::record
