#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// Lines over steps, as inline SVG with a legend; a gap where a value is no number. Colours are the
/// page's --line-0, --line-1, …
std::string line_chart(const std::string& title,
                       const std::vector<std::pair<std::string, Curve>>& curves);

/// A row of parts of a whole, as inline SVG. Colours are the page's classes compute, waiting and
/// communication.
std::string stacked_bar(const RankInterval& parts, double longest, const std::string& description);

/// About five round numbers from one to the other. lowest < highest.
std::vector<double> ticks(double lowest, double highest);

/// At most so many points that look the same: of each stretch the first, the least, the greatest
/// and the last.
Curve thinned(const Curve& curve, std::size_t most);

}  // namespace lockstep::record
