#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::inline v0_2::kernels {

/// Elements of a vector by their places. Shapes: both spans of one length.
template <class T>
struct Picks {
  std::span<std::uint32_t> indices;
  std::span<T> values;
};

/// Buffers of a selection. The caller keeps them between calls, so that no call allocates.
template <class T>
class SelectSpace {
 public:
  /// Allocates buffers to select up to k elements.
  explicit SelectSpace(std::size_t k);

  std::size_t largest_k() const { return k_; }
  /// Candidates held before those that cannot be among the k are thrown out.
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

/// Picks the picks.indices.size() elements of largest magnitude, of equal ones those of lower
/// index, in ascending order of index. NaN ranks above Inf. As many picks as data has elements at
/// the most, and no more than space was made for.
/// Source: a threshold estimated from a sample, as in Lin, Han, Mao, Wang, Dally, "Deep Gradient
/// Compression", 2018; made exact by selecting among the candidates that pass it.
template <class T>
void select_top(std::span<const T> data, SelectSpace<T>& space, Picks<T> picks);

/// The same of the sum: residual += gradient, gradient = 0, and residual is what is picked from.
template <class T>
void move_and_select_top(std::span<T> gradient, std::span<T> residual, SelectSpace<T>& space,
                         Picks<T> picks);

/// How far picks must reach behind what they are to hold.
inline constexpr std::size_t select_slack = 64;

/// Picks the elements whose magnitude is at least threshold, in ascending order of index, and
/// returns how many there are. When they are more than picks.indices.size() - select_slack, what
/// picks then hold is of no use.
template <class T>
std::size_t select_above(std::span<const T> data, T threshold, Picks<T> picks);

/// The same of the sum: residual += gradient, gradient = 0, and residual is what is picked from.
template <class T>
std::size_t move_and_select_above(std::span<T> gradient, std::span<T> residual, T threshold,
                                  Picks<T> picks);

}  // namespace lockstep::kernels
