#include "record/chart.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <iterator>
#include <limits>

#include "core/text.h"

namespace lockstep::inline v0_2::record {
namespace {

/// How many bytes the character that the text begins with takes, or 0 if it is none.
std::size_t character_at(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = byte(0);
  if (first < 0x20) return first == '\n' || first == '\t' ? 1 : 0;
  if (first < 0x7f) return 1;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  std::uint32_t code = first & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool needs_fewer = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return needs_fewer || surrogate || code > 0x10ffff || (code & 0xfffe) == 0xfffe ? 0 : size;
}

/// As printf's %f and %g under the "C" locale.
std::string text_of(double value, std::chars_format format, int digits) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits).ptr;
  return {text.data(), end};
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto size = character_at(text);
    switch (size == 1 ? text[0] : '\0') {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += size == 0 ? std::string_view("?") : text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "no number";
  const bool whole = std::abs(value) >= 1000 && std::abs(value) < 1e9;
  return whole ? text_of(value, std::chars_format::fixed, 0)
               : text_of(value, std::chars_format::general, 4);
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> units{"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < units.size(); ++unit) bytes /= 1000;
  return text_of(bytes, std::chars_format::general, 3) + ' ' + units[unit];
}

namespace {

// Units: those of the drawing, which the page scales.
constexpr double width = 640;
constexpr double height = 280;
constexpr double left = 64;
constexpr double right = 16;
constexpr double top = 12;
constexpr double bottom = 36;
constexpr std::size_t most_points = 800;
constexpr std::size_t marked_points = 60;  // more of them would hide the line
constexpr int colours = 6;

/// Whether it is a number. The difference of two such values is one, too.
bool drawable(double value) { return std::abs(value) <= 1e307; }

/// The ranges of the axes.
struct Frame {
  double first = std::numeric_limits<double>::max();
  double last = std::numeric_limits<double>::lowest();
  double lowest = first;
  double highest = last;

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
  double x(double step) const {
    return left + (width - left - right) * (step - first) / (last - first);
  }
  double y(double value) const {
    return top + (height - top - bottom) * (highest - value) / (highest - lowest);
  }
};

void draw_axes(std::ostream& out, const Frame& frame) {
  for (const double value : ticks(frame.lowest, frame.highest)) {
    const double y = frame.y(value);
    out << "<line class=\"grid\" x1=\"" << left << "\" x2=\"" << width - right << "\" y1=\"" << y
        << "\" y2=\"" << y << "\"/><text class=\"tick\" text-anchor=\"end\" x=\"" << left - 8
        << "\" y=\"" << y + 4 << "\">" << number_text(value) << "</text>\n";
  }
  for (const double step : ticks(frame.first, frame.last)) {
    if (step != std::floor(step)) continue;
    out << "<text class=\"tick\" text-anchor=\"middle\" x=\"" << frame.x(step) << "\" y=\""
        << height - bottom + 18 << "\">" << number_text(step) << "</text>\n";
  }
  out << "<text class=\"tick\" text-anchor=\"end\" x=\"" << width - right << "\" y=\"" << height - 3
      << "\">step</text>\n";
}

void draw_curve(std::ostream& out, const Frame& frame, const Curve& curve, int colour,
                const std::string& name) {
  const std::string stroke = " style=\"stroke: var(--line-" + std::to_string(colour) + ")\"";
  std::string points;
  const auto end_line = [&] {
    if (!points.empty()) {
      out << "<polyline class=\"curve\"" << stroke << " points=\"" << points << "\"/>\n";
    }
    points.clear();
  };
  for (const auto& [step, value] : curve) {
    if (!drawable(value)) {
      end_line();
      continue;
    }
    detail::TextStream point;
    point << std::fixed << std::setprecision(1) << (points.empty() ? "" : " ")
          << frame.x(static_cast<double>(step)) << ',' << frame.y(value);
    points += point.str();
  }
  end_line();
  if (curve.size() > marked_points) return;
  for (const auto& [step, value] : curve) {
    if (!drawable(value)) continue;
    out << "<circle class=\"point\" style=\"fill: var(--line-" << colour << ")\" r=\"3\" cx=\""
        << frame.x(static_cast<double>(step)) << "\" cy=\"" << frame.y(value) << "\"><title>"
        << escaped(name) << " at step " << step << ": " << number_text(value)
        << "</title></circle>\n";
  }
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
  for (double i = first; i <= last && found.size() < 20; ++i) found.push_back(i * distance);
  return found;
}

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  const std::size_t length = (curve.size() * 4 + most - 1) / most;
  const auto below = [](const auto& a, const auto& b) { return a.second < b.second; };
  Curve kept;
  for (auto begin = curve.begin(); begin != curve.end();) {
    auto end = begin;
    for (std::size_t i = 0; i < length && end != curve.end(); ++i) ++end;
    for (auto one = begin; one != end; ++one) {
      // The place of what is no number must stay, or the line would be drawn across it.
      if (!drawable(one->second)) kept.insert(*one);
    }
    kept.insert(*begin);
    kept.insert(*std::min_element(begin, end, below));
    kept.insert(*std::max_element(begin, end, below));
    kept.insert(*std::prev(end));
    begin = end;
  }
  return kept;
}

std::string line_chart(const std::string& title,
                       const std::vector<std::pair<std::string, Curve>>& curves) {
  Frame frame;
  for (const auto& [name, curve] : curves) frame.include(curve);
  frame.widen();
  detail::TextStream out;
  out << "<figure><figcaption>" << escaped(title) << "</figcaption>\n<svg viewBox=\"0 0 " << width
      << ' ' << height << "\" role=\"img\" aria-label=\"" << escaped(title) << "\">\n";
  draw_axes(out, frame);
  int colour = 0;
  for (const auto& [name, curve] : curves) {
    draw_curve(out, frame, thinned(curve, most_points), colour++ % colours, name);
  }
  out << "</svg>\n<p class=\"legend\">";
  colour = 0;
  for (const auto& [name, curve] : curves) {
    out << "<span><i style=\"background: var(--line-" << colour++ % colours << ")\"></i>"
        << escaped(name);
    if (!curve.empty()) out << ' ' << number_text(curve.rbegin()->second);
    out << "</span> ";
  }
  out << "</p></figure>\n";
  return out.str();
}

std::string stacked_bar(const RankInterval& parts, double longest, const std::string& description) {
  constexpr double bar = 600;
  detail::TextStream out;
  out << "<svg class=\"bar\" viewBox=\"0 0 " << bar << " 18\" preserveAspectRatio=\"none\" "
      << "role=\"img\" aria-label=\"" << escaped(description) << "\"><title>"
      << escaped(description) << "</title>";
  double x = 0;
  const auto part = [&](const char* name, double seconds) {
    const double size = longest > 0 ? bar * std::max(seconds, 0.0) / longest : 0;
    out << "<rect class=\"" << name << "\" x=\"" << x << "\" y=\"0\" width=\"" << size
        << "\" height=\"18\"/>";
    x += size;
  };
  part("compute", parts.computing());
  part("communication", parts.working);
  part("waiting", parts.waiting);
  out << "</svg>";
  return out.str();
}

}  // namespace lockstep::record
