#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace lockstep::inline v0_2::record {

/// Colours of the quantities that every report shows, as CSS variables of the page.
inline constexpr const char* step_colour = "var(--step)";
inline constexpr const char* compute_colour = "var(--compute)";
inline constexpr const char* loading_colour = "var(--loading)";
inline constexpr const char* communication_colour = "var(--communication)";
inline constexpr const char* waiting_colour = "var(--waiting)";

/// The colours of the other quantities of a page. A quantity has one colour, in every chart that
/// shows it, and no two quantities have the same.
class Palette {
 public:
  /// A CSS colour for light and dark mode. A quantity gets it when it is first named.
  std::string colour(const std::string& quantity);

 private:
  std::map<std::string, std::size_t> numbers_;
};

}  // namespace lockstep::record
