#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0_2 {

/// A sum of float64 numbers that is rounded once, when value() is called. The result has the same
/// bits for every order of the additions and for every distribution of the numbers over ranks.
/// Units: about 600 bytes.
/// Source: Kulisch, "Computer Arithmetic and Validity", 2013 (the long accumulator).
class ExactSum {
 public:
  void add(double value);
  void add(std::int64_t value);
  /// Adds value · weight without rounding the product.
  void add_product(double value, double weight);

  /// The sum, rounded to nearest. Infinity beyond the range of float64. NaN if a NaN was added, or
  /// infinities of both signs.
  double value() const;

 private:
  friend class MetricCombiner;

  /// Brings every digit but the last into [0, 2^32).
  void carry();

  /// Digit i counts units of 2^(32 i - 1074), the smallest float64 being 2^-1074. The last digit
  /// has the sign.
  std::array<std::int64_t, 68> digits_{};
  std::uint32_t additions_ = 0;  ///< since the last carry()
  std::int64_t nans_ = 0;
  std::int64_t positive_infinities_ = 0;
  std::int64_t negative_infinities_ = 0;
};

}  // namespace lockstep
