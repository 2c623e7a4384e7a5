#include <algorithm>
#include <type_traits>

#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_mean.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/quantize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {
namespace {

/// The elements and residuals of some ranks at the same index.
template <std::size_t kRanks>
struct Places {
  float* values[kRanks];
  float* residuals[kRanks];  ///< null without error feedback
};

template <std::size_t kRanks>
Places<kRanks> places_of(std::span<const QuantizedPart> ranks, std::size_t at) {
  Places<kRanks> places;
  for (std::size_t r = 0; r < kRanks; ++r) {
    const auto [values, residual] = ranks[r];
    places.values[r] = values + at;
    places.residuals[r] = residual != nullptr ? residual + at : nullptr;
  }
  return places;
}

/// The decoded values of the chunks, summed over ranks.
struct Sum {
  HWY_ALIGN float values[quantized_chunk] = {};
  std::int32_t largest_bits = 0;
};

/// sum (+)= share · decoded chunk, for each rank; residuals -= decoded chunk. Prefetches the next
/// chunks, because the loops over a chunk are too long for the processor's own prefetching.
template <bool kFeedback, bool kFirst, std::size_t kRanks>
HWY_INLINE void add_decoded(const Places<kRanks>& chunks, const Places<kRanks>& next,
                            const Scale (&scales)[kRanks], float share, Sum& sum) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t line = std::max(64 / sizeof(float), lanes);
  auto most = hn::Zero(Whole());
  for (std::size_t at = 0; at < quantized_chunk; at += line) {
    for (std::size_t r = 0; r < kRanks; ++r) {
      hwy::Prefetch(next.values[r] + at);
      if constexpr (kFeedback) hwy::Prefetch(next.residuals[r] + at);
    }
    for (std::size_t i = at; i < at + line; i += lanes) {
      auto total = kFirst ? hn::Zero(d) : hn::LoadU(d, sum.values + i);
      for (std::size_t r = 0; r < kRanks; ++r) {
        const float scale = scales[r].scale;
        const auto v = hn::LoadU(d, (kFeedback ? chunks.residuals[r] : chunks.values[r]) + i);
        const auto codes = codes_of(v, hn::Set(d, scales[r].inverse));
        if constexpr (kFeedback) {
          hn::StoreU(hn::Sub(v, hn::Mul(codes, hn::Set(d, scale))), d, chunks.residuals[r] + i);
        }
        const auto decoded = hn::Mul(codes, hn::Set(d, scale * share));
        total = kFirst && r == 0 ? decoded : hn::Add(total, decoded);
      }
      hn::StoreU(total, d, sum.values + i);
      most = hn::Max(most, magnitude_bits(total));
    }
  }
  sum.largest_bits = largest_of(most);
}

/// The first element that is not finite, of the lowest rank that has one.
struct FirstNotFinite {
  std::size_t rank;
  std::size_t place;
};

/// Adds the ranks' chunks to the sum. first: begins a new sum.
template <bool kFeedback, std::size_t kRanks>
HWY_INLINE std::optional<FirstNotFinite> add_chunks(const Places<kRanks>& chunks,
                                                    const Places<kRanks>& next, bool first,
                                                    float share, Sum& sum) {
  Scale scales[kRanks];
  std::optional<FirstNotFinite> not_finite;
  for (std::size_t r = 0; r < kRanks; ++r) {
    scales[r] = kFeedback ? add_and_measure(chunks.values[r], chunks.residuals[r])
                          : measure(chunks.values[r]);
    if (scales[r].is_finite()) continue;
    if (!not_finite) {
      not_finite = {r, first_not_finite(kFeedback ? chunks.residuals[r] : chunks.values[r])};
    }
    // The sum is not used any more. Count this chunk as zeros.
    if (kFeedback) std::fill_n(chunks.residuals[r], quantized_chunk, 0.0f);
    scales[r] = {};
  }
  if (!kFeedback && not_finite) return not_finite;
  if (first) {
    add_decoded<kFeedback, true>(chunks, next, scales, share, sum);
  } else {
    add_decoded<kFeedback, false>(chunks, next, scales, share, sum);
  }
  return not_finite;
}

/// The same for one rank's last, shorter chunk, padded by zeros.
template <bool kFeedback>
std::optional<FirstNotFinite> add_short_chunk(const QuantizedPart& rank, std::size_t at,
                                              std::size_t length, bool first, float share,
                                              Sum& sum) {
  float values[quantized_chunk] = {};
  float residual[quantized_chunk] = {};
  std::copy_n(rank.values + at, length, values);
  if (kFeedback) std::copy_n(rank.residual + at, length, residual);
  const Places<1> chunk{.values = {values}, .residuals = {residual}};
  const auto not_finite = add_chunks<kFeedback>(chunk, chunk, first, share, sum);
  if (kFeedback) std::copy_n(residual, length, rank.residual + at);
  return not_finite;
}

/// The values of all ranks' chunks = the decoded codes of the mean.
template <std::size_t kRanks>
HWY_INLINE void store_decoded(const float* mean, const Scale& scale, const Places<kRanks>& chunks) {
  const Floats d;
  const auto inverse = hn::Set(d, scale.inverse);
  const auto whole = hn::Set(d, scale.scale);
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto decoded = hn::Mul(codes_of(hn::LoadU(d, mean + i), inverse), whole);
    for (std::size_t r = 0; r < kRanks; ++r) hn::StoreU(decoded, d, chunks.values[r] + i);
  }
}

/// Calls fn(number, first rank) for pairs of ranks, and for a single last rank. number is an
/// integral constant, 2 or 1.
template <class Fn>
HWY_INLINE void for_each_pair(std::size_t ranks, const Fn& fn) {
  std::size_t r = 0;
  for (; r + 2 <= ranks; r += 2) fn(std::integral_constant<std::size_t, 2>(), r);
  if (r < ranks) fn(std::integral_constant<std::size_t, 1>(), r);
}

template <bool kFeedback>
std::optional<NotFinite> mean_of_all(std::span<const QuantizedPart> ranks, std::size_t count) {
  const float share = 1.0f / static_cast<float>(ranks.size());
  std::optional<NotFinite> result;
  Sum sum;
  for (std::size_t at = 0; at < count; at += quantized_chunk) {
    const std::size_t length = std::min(quantized_chunk, count - at);
    const bool whole = length == quantized_chunk;
    const std::size_t next = count - at >= 2 * quantized_chunk ? at + quantized_chunk : at;
    bool finite = true;
    const auto note = [&](const std::optional<FirstNotFinite>& not_finite, std::size_t r) {
      if (!not_finite) return;
      finite = false;
      if (result) return;
      result = {at + not_finite->place, static_cast<std::int32_t>(r + not_finite->rank)};
    };
    if (whole) {
      for_each_pair(ranks.size(), [&](auto number, std::size_t r) {
        const auto some = ranks.subspan(r);
        note(add_chunks<kFeedback>(places_of<number>(some, at), places_of<number>(some, next),
                                   r == 0, share, sum),
             r);
      });
    } else {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        note(add_short_chunk<kFeedback>(ranks[r], at, length, r == 0, share, sum), r);
      }
    }
    if (!finite) continue;
    const auto scale = scale_of(sum.largest_bits);
    if (!scale.is_finite()) {
      note(FirstNotFinite{.rank = 0, .place = first_not_finite(sum.values)}, 0);
    } else if (whole) {
      for_each_pair(ranks.size(), [&](auto number, std::size_t r) {
        store_decoded(sum.values, scale, places_of<number>(ranks.subspan(r), at));
      });
    } else {
      float decoded[quantized_chunk];
      store_decoded<1>(sum.values, scale, {.values = {decoded}, .residuals = {}});
      for (const auto& rank : ranks) std::copy_n(decoded, length, rank.values + at);
    }
  }
  return result;
}

}  // namespace

std::optional<NotFinite> mean_of_ranks(std::span<const QuantizedPart> ranks, std::size_t count) {
  return ranks.front().residual != nullptr ? mean_of_all<true>(ranks, count)
                                           : mean_of_all<false>(ranks, count);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(mean_of_ranks);

std::optional<NotFinite> quantized_mean(std::span<const QuantizedPart> ranks, std::size_t count) {
  if (ranks.empty()) return {};
  return HWY_DYNAMIC_DISPATCH(mean_of_ranks)(ranks, count);
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
