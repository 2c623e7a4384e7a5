#include "record/page/chart.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <iterator>
#include <limits>

#include "core/text.h"
#include "record/page/page.h"

namespace lockstep::inline v0_2::record {
namespace {

constexpr std::size_t most_points = 800;
constexpr std::size_t marked_points = 60;  // more of them would hide the line
constexpr std::size_t fewest_smoothed = 30;
constexpr double least_variation = 3;  // a smoothed curve would lag behind a steadier one

/// Whether it is a number. The difference of two such values is one, too.
bool drawable(double value) { return std::abs(value) <= 1e307; }

/// The ranges of the axes.
struct Frame {
  double first = std::numeric_limits<double>::max();
  double last = std::numeric_limits<double>::lowest();
  double lowest = first;
  double highest = last;
  bool is_log = false;

  void include(const Curve& curve) {
    for (const auto& [step, value] : curve) {
      first = std::min(first, static_cast<double>(step));
      last = std::max(last, static_cast<double>(step));
      if (!drawable(value)) continue;
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
  }
  /// Widens a range that is empty or a single value.
  void widen() {
    if (first > last) first = last = 0;
    if (lowest > highest) lowest = highest = 0;
    const auto apart = [](double& low, double& high) {
      if (high - low > 1e-12 * std::max(std::abs(low), std::abs(high))) return;
      const double room = std::max(std::abs(low) * 0.1, 0.5);
      low -= room;
      high += room;
    };
    apart(first, last);
    apart(lowest, highest);
  }
  double scaled(double value) const {
    return is_log && drawable(value) ? std::log10(value) : value;
  }
  Curve scaled(Curve curve) const {
    for (auto& [step, value] : curve) value = scaled(value);
    return curve;
  }
  // Percent of the drawing's width and height. The division comes first: the product of a large
  // difference would be infinite.
  double x(double step) const { return (step - first) / (last - first) * 100; }
  double y(double value) const {
    return (scaled(highest) - scaled(value)) / (scaled(highest) - scaled(lowest)) * 100;
  }
};

void draw_axes(std::ostream& out, const Frame& frame) {
  for (const double value : (frame.is_log ? log_ticks : ticks)(frame.lowest, frame.highest)) {
    const double y = frame.y(value);
    out << "<line class=\"grid\" x2=\"100%\" y1=\"" << y << "%\" y2=\"" << y
        << "%\"/><text class=\"tick\" text-anchor=\"end\" x=\"-8\" y=\"" << y << "%\" dy=\"4\">"
        << number_text(value) << "</text>\n";
  }
  for (const double step : ticks(frame.first, frame.last)) {
    if (step != std::floor(step)) continue;
    out << "<text class=\"tick\" text-anchor=\"middle\" x=\"" << frame.x(step)
        << "%\" y=\"100%\" dy=\"18\">" << number_text(step) << "</text>\n";
  }
  out << "<text class=\"tick\" text-anchor=\"end\" x=\"100%\" y=\"100%\" dy=\"38\">step</text>\n";
}

void draw_curve(std::ostream& out, const Frame& frame, const Curve& curve, const Line& line,
                bool raw) {
  std::string points;
  const auto end_line = [&] {
    if (!points.empty()) {
      out << "<polyline class=\"curve" << (raw ? " raw" : "") << (line.second ? " second" : "")
          << "\" style=\"stroke: " << line.colour << "\" points=\"" << points << "\"/>\n";
    }
    points.clear();
  };
  for (const auto& [step, value] : curve) {
    if (!drawable(value)) {
      end_line();
      continue;
    }
    detail::TextStream point;
    point << std::fixed << std::setprecision(2) << (points.empty() ? "" : " ")
          << frame.x(static_cast<double>(step)) << ',' << frame.y(value);
    points += point.str();
  }
  end_line();
}

void draw_points(std::ostream& out, const Frame& frame, const Line& line) {
  for (const auto& [step, value] : line.curve) {
    if (!drawable(value)) continue;
    out << "<circle class=\"point\" style=\"fill: " << line.colour << "\" r=\"3\" cx=\""
        << frame.x(static_cast<double>(step)) << "%\" cy=\"" << frame.y(value) << "%\"><title>"
        << escaped(line.name) << " at step " << step << ": " << number_text(value)
        << "</title></circle>\n";
  }
}

/// Returns over how many points it smoothed.
std::size_t draw_line(std::ostream& out, const Frame& frame, const Line& line) {
  const auto smoothing = smoothing_of(frame.scaled(line.curve));
  // Its units are percent of both sides, for coordinates of a curve have no other.
  out << "<svg viewBox=\"0 0 100 100\" preserveAspectRatio=\"none\">\n";
  draw_curve(out, frame, thinned(line.curve, most_points), line, smoothing > 0);
  if (smoothing > 0) {
    draw_curve(out, frame, thinned(smoothed(line.curve, smoothing), most_points), line, false);
  }
  out << "</svg>\n";
  if (line.curve.size() <= marked_points) draw_points(out, frame, line);
  return smoothing;
}

}  // namespace

std::vector<double> ticks(double lowest, double highest) {
  const double rough = (highest - lowest) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double distance = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) distance = factor * power;
  }
  std::vector<double> found;
  const double first = std::ceil(lowest / distance);
  const double last = std::floor(highest / distance);
  for (double i = first; i <= last && found.size() < 20; ++i)
    found.push_back(i * distance + 0.0);  // no -0
  return found;
}

std::vector<double> log_ticks(double lowest, double highest) {
  const double least = std::log10(lowest);
  const double most = std::log10(highest);
  std::vector<double> found;
  if (most - least >= 3) {
    for (const double power : ticks(least, most)) found.push_back(std::pow(10, power));
    return found;
  }
  for (double power = std::floor(least); power <= most; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, power);
      if (tick >= lowest && tick <= highest) found.push_back(tick);
    }
  }
  return found;
}

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  const std::size_t length = (curve.size() * 4 + most - 1) / most;
  Curve kept;
  for (auto begin = curve.begin(); begin != curve.end();) {
    auto end = begin;
    for (std::size_t i = 0; i < length && end != curve.end(); ++i) ++end;
    for (auto one = begin; one != end; ++one) {
      // The place of what is no number must stay, or the line would be drawn across it.
      if (!drawable(one->second)) kept.insert(*one);
    }
    kept.insert(*begin);
    kept.insert(*std::ranges::min_element(begin, end, {}, number_or(HUGE_VAL)));
    kept.insert(*std::ranges::max_element(begin, end, {}, number_or(-HUGE_VAL)));
    kept.insert(*std::prev(end));
    begin = end;
  }
  return kept;
}

std::size_t smoothing_of(const Curve& curve) {
  const std::size_t points = curve.size();
  if (points < fewest_smoothed) return 0;
  Frame frame;
  frame.include(curve);
  double variation = 0;
  double before = std::nan("");
  for (const auto& [step, value] : curve) {
    if (!drawable(value)) continue;
    if (drawable(before)) variation += std::abs(value - before) / 2;
    before = value;
  }
  const bool is_steady = variation / least_variation <= (frame.highest / 2 - frame.lowest / 2);
  return is_steady ? 0 : std::clamp<std::size_t>(points / 25, 3, 200);
}

Curve smoothed(const Curve& curve, std::size_t points) {
  const std::vector<Curve::value_type> all(curve.begin(), curve.end());
  const auto count = static_cast<std::ptrdiff_t>(all.size());
  const auto reach = static_cast<std::ptrdiff_t>(points / 2);
  Curve result;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    double mean = all[i].second;
    double weight = 1;
    for (const std::ptrdiff_t side : {-1, 1}) {
      for (auto j = i + side; std::abs(j - i) <= reach; j += side) {
        if (j < 0 || j >= count || !drawable(all[j].second)) break;
        mean += (all[j].second - mean) / ++weight;
      }
    }
    result.emplace_hint(result.end(), all[i].first, drawable(all[i].second) ? mean : all[i].second);
  }
  return result;
}

std::string line_chart(const std::string& title, const std::vector<Line>& lines, Axis axis) {
  Frame frame;
  for (const auto& line : lines) frame.include(line.curve);
  frame.is_log = axis == Axis::logarithmic && frame.lowest > 0 && frame.lowest < frame.highest / 10;
  frame.widen();
  std::size_t smoothing = 0;
  detail::TextStream drawing;
  draw_axes(drawing, frame);
  std::vector<Values> legend;
  for (const auto& line : lines) {
    smoothing = std::max(smoothing, draw_line(drawing, frame, line));
    const auto last = line.curve.empty() ? std::string() : number_text(line.curve.rbegin()->second);
    legend.push_back({{"name", line.name},
                      {"last", last},
                      {"colour", line.colour},
                      {"second", line.second ? "yes" : ""}});
  }
  Values chart{{"title", title},
               {"smoothing", smoothing > 0 ? std::to_string(smoothing) : ""},
               {"log", frame.is_log ? "yes" : ""},
               {"drawing", drawing.str()}};
  chart.lists["lines"] = std::move(legend);
  return filled(chart_template, chart);
}

std::string stacked_bar(const RankInterval& parts, double longest, const std::string& description) {
  constexpr double bar = 600;
  detail::TextStream out;
  out << "<svg class=\"bar\" viewBox=\"0 0 " << bar << " 18\" preserveAspectRatio=\"none\" "
      << "role=\"img\" aria-label=\"" << escaped(description) << "\"><title>"
      << escaped(description) << "</title>";
  double x = 0;
  const auto part = [&](const char* quantity, double seconds) {
    const double size = longest > 0 ? bar * std::max(seconds, 0.0) / longest : 0;
    out << "<rect style=\"fill: var(--" << quantity << ")\" x=\"" << x << "\" y=\"0\" width=\""
        << size << "\" height=\"18\"/>";
    x += size;
  };
  part("compute", parts.computing() - parts.loading);
  part("loading", parts.loading);
  part("communication", parts.working);
  part("waiting", parts.waiting);
  out << "</svg>";
  return out.str();
}

std::string Palette::colour(const std::string& quantity) {
  constexpr std::size_t chosen = 7;  // colours --quantity-0, --quantity-1, … of the page
  const auto number = numbers_.try_emplace(quantity, numbers_.size()).first->second;
  if (number < chosen) return detail::concat("var(--quantity-", number, ")");
  // Multiples of the golden angle: any number of hues, each far from those before it.
  const double hue = std::fmod(static_cast<double>(number) * 137.508, 360);
  return detail::concat("hsl(", hue, " 60% var(--lightness))");
}

}  // namespace lockstep::record
