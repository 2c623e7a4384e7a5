#include "kernels/select_largest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/text.h"
#include "lockstep/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select_largest.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// Note [How the largest elements are found]
// A sample gives an estimate of the k-th largest magnitude, slightly too low. One pass collects all
// elements above this threshold. When the candidate buffer is full, the pass drops all but the k
// largest so far. The threshold then rises to the smallest of these k, because a later element of
// equal magnitude has a higher index and is not selected. Many ties or zeros therefore need no
// further pass. If fewer than k elements exceed the threshold, the next pass uses a lower one. A
// radix selection finds the k-th largest of the candidates.

#ifndef LOCKSTEP_KERNELS_SELECT_SCAN
#define LOCKSTEP_KERNELS_SELECT_SCAN
namespace lockstep::inline v0_2::kernels {
namespace {

/// Candidates collected so far.
template <class T>
struct Candidates {
  std::uint32_t* indices;
  T* values;
  std::size_t capacity;
  std::size_t count = 0;
};

/// Input of a pass. With a residual, the pass moves gradient into residual.
template <class T>
struct Source {
  T* gradient;
  T* residual = nullptr;
  std::size_t count;

  T value(std::size_t i) const {
    return residual != nullptr ? gradient[i] + residual[i] : gradient[i];
  }
  /// Input of the passes after the first.
  Source moved() const {
    return residual == nullptr ? *this : Source{.gradient = residual, .count = count};
  }
};

/// Appends elements above the threshold, one at a time from index `from`. Returns the index at
/// which found became full, else the end.
template <class T>
std::size_t scan(const Source<T>& source, std::size_t from, std::size_t end,
                 std::make_signed_t<detail::Magnitude<T>> limit, Candidates<T>& found) {
  for (std::size_t i = from; i < end; ++i) {
    const T value = source.value(i);
    if (static_cast<std::make_signed_t<detail::Magnitude<T>>>(detail::magnitude(value)) > limit) {
      if (found.count == found.capacity) return i;
      found.indices[found.count] = static_cast<std::uint32_t>(i);
      found.values[found.count] = value;
      ++found.count;
    }
    if (source.residual != nullptr) {
      source.residual[i] = value;
      source.gradient[i] = 0;
    }
  }
  return end;
}

/// For each 8-bit mask: the indices of its set bits in ascending order, with four bits each.
struct LaneLists {
  constexpr LaneLists() {
    for (std::uint32_t set = 0; set < 256; ++set) {
      int length = 0;
      for (std::uint32_t lane = 0; lane < 8; ++lane) {
        if ((set >> lane & 1) != 0) of[set] |= lane << (4 * length++);
      }
    }
  }
  std::uint32_t of[256] = {};
};
[[maybe_unused]] constexpr LaneLists lane_lists;

}  // namespace
}  // namespace lockstep::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Packs the elements of a and b that `set` selects, and writes whole vectors at to_a and to_b.
/// Returns the number of selected elements. Partial stores are many times slower on some
/// processors.
template <class DF>
HWY_INLINE std::size_t store_lanes(DF d, hn::Mask<hn::RebindToSigned<DF>> set, hn::Vec<DF> a,
                                   float* to_a, hn::Vec<hn::RebindToUnsigned<DF>> b,
                                   std::uint32_t* to_b) {
  const hn::RebindToSigned<DF> i32;
  const hn::RebindToUnsigned<DF> u32;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  // With Highway 1.0.3's Compress, GCC copies a table to the stack in every call.
  std::uint8_t bits;
  hn::StoreMaskBits(i32, set, &bits);
  const auto list = hn::Set(u32, lane_lists.of[bits]);
  const auto lanes = hn::IndicesFromVec(
      d, hn::And(hn::Shr(list, hn::ShiftLeft<2>(hn::Iota(u32, 0))), hn::Set(u32, 7)));
  hn::StoreU(hn::TableLookupLanes(a, lanes), d, to_a);
  hn::StoreU(hn::BitCast(u32, hn::TableLookupLanes(hn::BitCast(d, b), lanes)), u32, to_b);
  return hwy::PopCount(std::uint64_t{bits});
#else
  hn::StoreU(hn::Compress(a, hn::RebindMask(d, set)), d, to_a);
  hn::StoreU(hn::Compress(b, hn::RebindMask(u32, set)), u32, to_b);
  return hn::CountTrue(i32, set);
#endif
}

template <bool kMove>
std::size_t scan_vectors(const Source<float>& source, std::size_t from, std::int32_t limit,
                         Candidates<float>& found) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> i32;
  const hn::RebindToUnsigned<decltype(d)> u32;
  const std::size_t lanes = hn::Lanes(d);
  const auto without_sign = hn::Set(i32, 0x7fffffff);
  const auto threshold_lanes = hn::Set(i32, limit);
  const auto places = hn::Iota(u32, 0);
  float* const gradient = source.gradient;
  float* const residual = source.residual;

  const auto load = [&](std::size_t i) {
    const auto values = hn::LoadU(d, gradient + i);
    if constexpr (kMove) return hn::Add(values, hn::LoadU(d, residual + i));
    return values;
  };
  const auto above_threshold = [&](hn::Vec<decltype(d)> values) {
    return hn::Gt(hn::And(hn::BitCast(i32, values), without_sign), threshold_lanes);
  };
  std::size_t count = found.count;
  const auto append = [&](std::size_t i, hn::Vec<decltype(d)> values) {
    const auto all = hn::Add(places, hn::Set(u32, static_cast<std::uint32_t>(i)));
    count += store_lanes(d, above_threshold(values), values, found.values + count, all,
                         found.indices + count);
  };
  const auto move = [&](std::size_t i, hn::Vec<decltype(d)> values) {
    if constexpr (kMove) {
      hn::StoreU(values, d, residual + i);
      hn::StoreU(hn::Zero(d), d, gradient + i);
    }
  };

  std::size_t i = from;
  for (; source.count - i >= 4 * lanes; i += 4 * lanes) {
    const auto v0 = load(i);
    const auto v1 = load(i + lanes);
    const auto v2 = load(i + 2 * lanes);
    const auto v3 = load(i + 3 * lanes);
    const auto any = hn::Or(hn::Or(above_threshold(v0), above_threshold(v1)),
                            hn::Or(above_threshold(v2), above_threshold(v3)));
    if (!hn::AllFalse(i32, any)) {
      if (found.capacity - count < 4 * lanes) break;
      append(i, v0);
      append(i + lanes, v1);
      append(i + 2 * lanes, v2);
      append(i + 3 * lanes, v3);
    }
    move(i, v0);
    move(i + lanes, v1);
    move(i + 2 * lanes, v2);
    move(i + 3 * lanes, v3);
  }
  found.count = count;
  return source.count - i >= 4 * lanes ? i : scan(source, i, source.count, limit, found);
}

std::size_t scan_floats(const Source<float>& source, std::size_t from, std::int32_t limit,
                        Candidates<float>& found) {
  return source.residual != nullptr ? scan_vectors<true>(source, from, limit, found)
                                    : scan_vectors<false>(source, from, limit, found);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(scan_floats);

namespace {

constexpr std::size_t largest_sample = 16384;
/// Vectors of at most this many elements need no threshold.
constexpr std::size_t least_capacity = 16384;

template <class T>
using Limit = std::make_signed_t<detail::Magnitude<T>>;

/// Appends elements above the threshold. Returns the index at which found became full, else the
/// end.
template <class T>
std::size_t pass(const Source<T>& source, std::size_t from, Limit<T> limit, Candidates<T>& found) {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(scan_floats)(source, from, limit, found);
  } else {
    return scan(source, from, source.count, limit, found);
  }
}

/// The smallest of the k largest magnitudes, and how many of the k are above it.
template <class T>
struct Least {
  detail::Magnitude<T> magnitude = 0;
  std::size_t above = 0;
};

template <class T>
Least<T> least_of_largest(std::span<const T> values, std::size_t k) {
  constexpr int digit_bits = 11;
  constexpr detail::Magnitude<T> digits = 1 << digit_bits;
  Least<T> least;
  int shift = sizeof(T) * 8 - 1;
  for (detail::Magnitude<T> known = 0; shift > 0;) {
    shift = std::max(0, shift - digit_bits);
    std::array<std::uint32_t, digits> histogram{};
    for (const T value : values) {
      const auto magnitude = detail::magnitude(value);
      if ((magnitude & known) == least.magnitude) ++histogram[(magnitude >> shift) & (digits - 1)];
    }
    // The digits of the last round may overlap known ones, which are equal in all counted values.
    auto digit = digits - 1;
    while (least.above + histogram[digit] < k) least.above += histogram[digit--];
    least.magnitude |= digit << shift;
    known |= (digits - 1) << shift;
  }
  return least;
}

/// Copies the k largest elements to picks in ascending order of index. picks may be the memory of
/// found.
template <class T>
Least<T> keep_largest(const Candidates<T>& found, Picks<T> picks) {
  const std::size_t k = picks.indices.size();
  const auto least = least_of_largest(std::span<const T>(found.values, found.count), k);
  std::size_t equal = k - least.above;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < found.count; ++i) {
    const T value = found.values[i];
    const auto magnitude = detail::magnitude(value);
    if (magnitude < least.magnitude) continue;
    if (magnitude == least.magnitude) {
      if (equal == 0) continue;
      --equal;
    }
    picks.indices[kept] = found.indices[i];
    picks.values[kept++] = value;
  }
  return least;
}

/// A threshold that slightly more than k elements should exceed. Each next() returns a lower one.
template <class T>
class SampledThreshold {
 public:
  SampledThreshold(const Source<T>& source, std::size_t k, SelectSpace<T>& space) {
    if (source.count <= space.capacity()) return;
    sample_ = std::span(space.sample());
    for (std::size_t i = 0; i < sample_.size(); ++i) {
      // Pseudo-random indices, the same in every run: fractions of multiples of the golden ratio,
      // which have no large gaps and follow no period of the data.
      const std::uint64_t fraction = (i + 1) * 0x9e3779b97f4a7c15 >> 32;
      sample_[i] = source.value(fraction * source.count >> 32);
    }
    const double expected = static_cast<double>(sample_.size()) * static_cast<double>(k) /
                            static_cast<double>(source.count);
    rank_ = static_cast<std::size_t>(expected + 4 * std::sqrt(expected) + 4);
  }

  Limit<T> next() {
    if (rank_ >= sample_.size()) return -1;
    const auto least = least_of_largest(std::span<const T>(sample_), rank_);
    rank_ *= 4;
    return static_cast<Limit<T>>(least.magnitude) - 1;
  }

 private:
  std::span<T> sample_;
  std::size_t rank_ = 0;
};

template <class T>
Source<T> source_of(std::span<T> data, std::span<T> residual) {
  return {.gradient = data.data(),
          .residual = residual.empty() ? nullptr : residual.data(),
          .count = data.size()};
}

}  // namespace

template <class T>
SelectSpace<T>::SelectSpace(std::size_t k)
    : k_(k),
      capacity_(2 * k + least_capacity),
      indices_(capacity_),
      values_(capacity_),
      sample_(largest_sample) {}

template <class T>
void select_top(std::span<T> data, std::span<T> residual, SelectSpace<T>& space, Picks<T> picks) {
  auto source = source_of(data, residual);
  const std::size_t k = picks.indices.size();
  if (source.count > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument(
        detail::concat("select_top: got ", source.count, " elements, expected fewer than 2^32"));
  }
  Candidates<T> found{
      .indices = space.indices(), .values = space.values(), .capacity = space.capacity()};
  SampledThreshold<T> thresholds(source, k, space);
  do {
    auto limit = thresholds.next();
    found.count = 0;
    for (std::size_t at = 0; at < source.count;) {
      at = pass(source, at, limit, found);
      if (at == source.count) continue;
      const auto least = keep_largest(found, {{found.indices, k}, {found.values, k}});
      found.count = k;
      limit = static_cast<Limit<T>>(least.magnitude);
    }
    source = source.moved();
  } while (found.count < k);
  keep_largest(found, picks);
}

template <class T>
std::size_t select_above(std::span<T> data, std::span<T> residual, T threshold, Picks<T> picks) {
  const auto source = source_of(data, residual);
  const auto limit = static_cast<Limit<T>>(detail::magnitude(threshold)) - 1;
  Candidates<T> found{.indices = picks.indices.data(),
                      .values = picks.values.data(),
                      .capacity = picks.indices.size()};
  std::size_t total = 0;
  for (std::size_t at = 0; at < source.count;) {
    at = pass(source, at, limit, found);
    total += found.count;
    found.count = 0;
  }
  return total;
}

#define LOCKSTEP_INSTANTIATE(T)                                                       \
  template class SelectSpace<T>;                                                      \
  template void select_top<T>(std::span<T>, std::span<T>, SelectSpace<T>&, Picks<T>); \
  template std::size_t select_above<T>(std::span<T>, std::span<T>, T, Picks<T>)
LOCKSTEP_INSTANTIATE(float);
LOCKSTEP_INSTANTIATE(double);
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
