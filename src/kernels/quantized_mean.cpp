#include "kernels/quantized_mean.h"

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

/// The same places of a few ranks' elements.
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

/// sum (+)= ranks' shares of what their chunks' codes say; residuals -= what they say. The chunks
/// that will be read next are asked for meanwhile: a chunk's loops are too long for the processor
/// to look beyond them by itself.
template <bool kFeedback, bool kFirst, std::size_t kRanks>
HWY_INLINE void add_said(const Places<kRanks>& chunks, const Places<kRanks>& next,
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
        const auto said = hn::Mul(codes, hn::Set(d, scale * share));
        total = kFirst && r == 0 ? said : hn::Add(total, said);
      }
      hn::StoreU(total, d, sum.values + i);
      most = hn::Max(most, magnitude_bits(total));
    }
  }
  sum.largest_bits = largest_of(most);
}

/// Where ranks' chunks are not finite: of the lowest rank, the first element.
struct Complaint {
  std::size_t rank;
  std::size_t place;
};

/// Adds ranks' chunks to the sum; to one that has not begun, if they are the first.
template <bool kFeedback, std::size_t kRanks>
HWY_INLINE std::optional<Complaint> add_chunks(const Places<kRanks>& chunks,
                                               const Places<kRanks>& next, bool first, float share,
                                               Sum& sum) {
  Scale scales[kRanks];
  std::optional<Complaint> complaint;
  for (std::size_t r = 0; r < kRanks; ++r) {
    scales[r] = kFeedback ? move_and_measure(chunks.values[r], chunks.residuals[r])
                          : measure(chunks.values[r]);
    if (scales[r].is_finite()) continue;
    if (!complaint) {
      complaint = {r, first_not_finite(kFeedback ? chunks.residuals[r] : chunks.values[r])};
    }
    // It says nothing, and the sum is of no use any more.
    if (kFeedback) std::fill_n(chunks.residuals[r], quantized_chunk, 0.0f);
    scales[r] = {};
  }
  if (!kFeedback && complaint) return complaint;
  if (first) {
    add_said<kFeedback, true>(chunks, next, scales, share, sum);
  } else {
    add_said<kFeedback, false>(chunks, next, scales, share, sum);
  }
  return complaint;
}

/// The same for one rank's chunk that is cut short, as if zeros stood behind it.
template <bool kFeedback>
std::optional<Complaint> add_short_chunk(const QuantizedPart& rank, std::size_t at,
                                         std::size_t length, bool first, float share, Sum& sum) {
  float values[quantized_chunk] = {};
  float residual[quantized_chunk] = {};
  std::copy_n(rank.values + at, length, values);
  if (kFeedback) std::copy_n(rank.residual + at, length, residual);
  const Places<1> chunk{.values = {values}, .residuals = {residual}};
  const auto complaint = add_chunks<kFeedback>(chunk, chunk, first, share, sum);
  if (kFeedback) std::copy_n(residual, length, rank.residual + at);
  return complaint;
}

/// Chunks' values = what the mean's codes say.
template <std::size_t kRanks>
HWY_INLINE void store_said(const float* mean, const Scale& scale, const Places<kRanks>& chunks) {
  const Floats d;
  const auto inverse = hn::Set(d, scale.inverse);
  const auto whole = hn::Set(d, scale.scale);
  for (std::size_t i = 0; i < quantized_chunk; i += hn::Lanes(d)) {
    const auto said = hn::Mul(codes_of(hn::LoadU(d, mean + i), inverse), whole);
    for (std::size_t r = 0; r < kRanks; ++r) hn::StoreU(said, d, chunks.values[r] + i);
  }
}

/// Calls fn(number, first rank) with an integral constant for two ranks at once, and for the last
/// of an odd number.
template <class Fn>
HWY_INLINE void for_each_pair(std::size_t ranks, const Fn& fn) {
  std::size_t r = 0;
  for (; r + 2 <= ranks; r += 2) fn(std::integral_constant<std::size_t, 2>(), r);
  if (r < ranks) fn(std::integral_constant<std::size_t, 1>(), r);
}

template <bool kFeedback>
std::optional<NotFinite> mean_of_all(std::span<const QuantizedPart> ranks, std::size_t count) {
  const float share = 1.0f / static_cast<float>(ranks.size());
  std::optional<NotFinite> first_complaint;
  Sum sum;
  for (std::size_t at = 0; at < count; at += quantized_chunk) {
    const std::size_t length = std::min(quantized_chunk, count - at);
    const bool whole = length == quantized_chunk;
    const std::size_t next = count - at >= 2 * quantized_chunk ? at + quantized_chunk : at;
    bool finite = true;
    const auto look_at = [&](const std::optional<Complaint>& complaint, std::size_t r) {
      if (!complaint) return;
      finite = false;
      if (first_complaint) return;
      first_complaint = {at + complaint->place, static_cast<std::int32_t>(r + complaint->rank)};
    };
    if (whole) {
      for_each_pair(ranks.size(), [&](auto number, std::size_t r) {
        const auto some = ranks.subspan(r);
        look_at(add_chunks<kFeedback>(places_of<number>(some, at), places_of<number>(some, next),
                                      r == 0, share, sum),
                r);
      });
    } else {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        look_at(add_short_chunk<kFeedback>(ranks[r], at, length, r == 0, share, sum), r);
      }
    }
    if (!finite) continue;
    const auto scale = scale_of(sum.largest_bits);
    if (!scale.is_finite()) {
      look_at(Complaint{.rank = 0, .place = first_not_finite(sum.values)}, 0);
    } else if (whole) {
      for_each_pair(ranks.size(), [&](auto number, std::size_t r) {
        store_said(sum.values, scale, places_of<number>(ranks.subspan(r), at));
      });
    } else {
      float said[quantized_chunk];
      store_said<1>(sum.values, scale, {.values = {said}, .residuals = {}});
      for (const auto& rank : ranks) std::copy_n(said, length, rank.values + at);
    }
  }
  return first_complaint;
}

}  // namespace

std::optional<NotFinite> mean_with_feedback(std::span<const QuantizedPart> ranks,
                                            std::size_t count) {
  return mean_of_all<true>(ranks, count);
}

std::optional<NotFinite> mean_without(std::span<const QuantizedPart> ranks, std::size_t count) {
  return mean_of_all<false>(ranks, count);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(mean_with_feedback);
HWY_EXPORT(mean_without);

std::optional<NotFinite> quantized_mean(std::span<const QuantizedPart> ranks, std::size_t count) {
  if (ranks.empty()) return {};
  return ranks.front().residual != nullptr ? HWY_DYNAMIC_DISPATCH(mean_with_feedback)(ranks, count)
                                           : HWY_DYNAMIC_DISPATCH(mean_without)(ranks, count);
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
