#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "record/run.h"

namespace lockstep::inline v0_2::record {

/// A curve of a chart.
struct Line {
  std::string name;
  Curve curve;
  std::string colour;   ///< a CSS colour, of the quantity
  bool second = false;  ///< of the second of two runs: dashed
};

/// The axis of a chart's values. logarithmic: only if all of them are positive and the greatest is
/// more than ten times the least.
enum class Axis { linear, logarithmic };

/// Lines over steps, as inline SVG with a legend; a gap where a value is no number. A line of many
/// points is drawn faintly, with its smoothed form over it. It is as wide as its place.
std::string line_chart(const std::string& title, const std::vector<Line>& lines,
                       Axis axis = Axis::linear);

/// A row of parts of a whole, as inline SVG: computing, loading, communication and waiting.
std::string stacked_bar(const RankInterval& parts, double longest, const std::string& description);

/// About five round numbers from one to the other. lowest < highest.
std::vector<double> ticks(double lowest, double highest);

/// Powers of ten from one to the other; where they are few, twice and five times these, too.
/// 0 < 10 lowest < highest.
std::vector<double> log_ticks(double lowest, double highest);

/// At most so many points that look the same: of each stretch the first, the least, the greatest
/// and the last.
Curve thinned(const Curve& curve, std::size_t most);

/// The mean of about so many points around each. A value that is no number stays, and no mean
/// reaches across it.
Curve smoothed(const Curve& curve, std::size_t points);

/// Over how many points a chart smooths a curve; 0 for one of few points, or without noise.
std::size_t smoothing_of(const Curve& curve);

/// The colours of a page's quantities, except a step and its parts, which have CSS variables of the
/// same names. A quantity has one colour, in every chart that shows it, and no two quantities have
/// the same.
class Palette {
 public:
  /// A CSS colour for light and dark mode. A quantity gets it when it is first named.
  std::string colour(const std::string& quantity);

 private:
  std::map<std::string, std::size_t> numbers_;
};

}  // namespace lockstep::record
