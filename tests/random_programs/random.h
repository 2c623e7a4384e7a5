#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace lockstep::random_programs {

/// Random numbers that are the same with every standard library. Source: Steele, Lea, Flood, "Fast
/// Splittable Pseudorandom Number Generators", 2014 (SplitMix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  /// 0 … count-1.
  int below(int count) { return static_cast<int>(bits() % static_cast<std::uint64_t>(count)); }
  bool chance(int percent) { return below(100) < percent; }
  /// From -1 to 1.
  double real() { return static_cast<double>(bits() >> 11) * 0x1p-52 - 1; }

  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::random_programs
