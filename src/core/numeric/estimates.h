#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// The middle value; of two middle ones their mean. 0 for an empty list.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// One equation of two unknowns x and y: first·x + second·y = value. The value is above 0.
struct LinearEquation {
  double first;
  double second;
  double value;
};

/// The x and y with the smallest sum of squared relative errors.
class LeastSquares {
 public:
  explicit LeastSquares(const std::vector<LinearEquation>& equations) {
    for (const auto& one : equations) {
      const double x = one.first / one.value;
      const double y = one.second / one.value;
      xx_ += x * x, xy_ += x * y, yy_ += y * y;
      x_ += x, y_ += y;
    }
  }

  /// x and y; nullopt if the equations do not determine both.
  std::optional<std::pair<double, double>> both() const {
    const double determinant = xx_ * yy_ - xy_ * xy_;
    if (!(determinant > 1e-9 * xx_ * yy_)) return std::nullopt;
    return std::pair((x_ * yy_ - y_ * xy_) / determinant, (y_ * xx_ - x_ * xy_) / determinant);
  }
  /// y, where x is known; NaN if no equation has it.
  double second(double x) const { return (y_ - x * xy_) / yy_; }

 private:
  double xx_ = 0, xy_ = 0, yy_ = 0, x_ = 0, y_ = 0;
};

}  // namespace lockstep::detail
