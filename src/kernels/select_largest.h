#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace lockstep::inline v0_2::kernels {

/// Selected elements of a vector: indices and values.
/// Shapes: both spans have the same length.
template <class T>
struct Picks {
  std::span<std::uint32_t> indices;
  std::span<T> values;
};

/// Buffers of select_top(). The caller reuses them, so that calls do not allocate.
template <class T>
class SelectSpace {
 public:
  /// Allocates buffers to select up to k elements.
  explicit SelectSpace(std::size_t k);

  std::size_t largest_k() const { return k_; }
  /// Largest number of candidates before the selection drops all but the k largest.
  std::size_t capacity() const { return capacity_; }
  std::uint32_t* indices() { return indices_.data(); }
  T* values() { return values_.data(); }
  std::vector<T>& sample() { return sample_; }

 private:
  std::size_t k_;
  std::size_t capacity_;
  std::vector<std::uint32_t> indices_;
  std::vector<T> values_;
  std::vector<T> sample_;
};

/// Selects the k = picks.indices.size() elements of largest magnitude of the data, in ascending
/// order of index. Of equal ones, those with lower index; NaN is above Inf. k must not exceed the
/// size of data or space.largest_k().
/// With a residual, which has as many elements: residual += data; data = 0; then selects from
/// residual. Without one, data is only read.
/// Source: a threshold estimated from a sample, as in Lin, Han, Mao, Wang, Dally, "Deep Gradient
/// Compression", 2018; made exact by selecting among the candidates that pass it.
template <class T>
void select_top(std::span<T> data, std::span<T> residual, SelectSpace<T>& space, Picks<T> picks);

/// Number of elements by which the spans of Picks must be longer than the selection.
inline constexpr std::size_t select_slack = 64;

/// Selects the elements whose magnitude is at least threshold, in ascending order of index, and
/// returns their number. If it exceeds picks.indices.size() - select_slack, the contents of picks
/// are not valid. picks has at least select_slack elements.
/// The residual is as in select_top().
template <class T>
std::size_t select_above(std::span<T> data, std::span<T> residual, T threshold, Picks<T> picks);

/// data[indices[i]] += scale · values[i], one after another. Every index must lie within data.
template <class T>
void scatter_add(std::span<T> data, std::span<const std::uint32_t> indices,
                 std::span<const T> values, T scale) {
  for (std::size_t i = 0; i < indices.size(); ++i) data[indices[i]] += scale * values[i];
}

}  // namespace lockstep::kernels

namespace lockstep::inline v0_2::detail {

/// The integer type of magnitudes of T.
template <class T>
using Magnitude = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

/// An integer that orders values by magnitude. Denormals are not flushed, Inf is above all numbers,
/// and all NaN are equal and above Inf.
template <class T>
constexpr Magnitude<T> magnitude(T value) {
  const auto bits = std::bit_cast<Magnitude<T>>(value);
  const auto sign = Magnitude<T>{1} << (sizeof(T) * 8 - 1);
  constexpr auto infinite = std::bit_cast<Magnitude<T>>(std::numeric_limits<T>::infinity());
  return std::min<Magnitude<T>>(bits & ~sign, infinite + 1);
}

}  // namespace lockstep::detail
