#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/waiting.h"
#include "kernels/quantize.h"
#include "kernels/quantized_mean.h"
#include "lockstep/strategies.h"
#include "profile/group_statistics.h"
#include "sync/bucket_layout.h"
#include "sync/residual.h"
#include "sync/sparse.h"

namespace lockstep::inline v0_2 {
namespace {

using kernels::QuantizedChunk;

/// Ranks send codes to the rank that averages them, which sends the mean as codes to all.
class MeanOfCodes final : public Exchange {
 public:
  MeanOfCodes(bool error_feedback, const Bucket& bucket)
      : layout_(bucket),
        chunks_(kernels::quantized_chunks(static_cast<std::size_t>(bucket.values().numel()))),
        residual_(error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    const auto gradient = detail::elements<float>(bucket.values());
    make_room(group);
    encode(gradient);
    co_await group.all_to_all(received_, codes_);
    kernels::quantize_mean(chunks_in(received_), static_cast<std::size_t>(group.size()),
                           chunks_in(mean_));
    co_await group.all_gather(codes_, mean_);
    refuse_not_finite();
    kernels::dequantize(chunks_in(codes_).first(chunks_), gradient);
  }

  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  static std::span<QuantizedChunk> chunks_in(const at::Tensor& bytes) {
    return {static_cast<QuantizedChunk*>(bytes.data_ptr()),
            static_cast<std::size_t>(bytes.nbytes()) / sizeof(QuantizedChunk)};
  }

  void make_room(const Group& group) {
    if (codes_.defined()) return;
    // As many chunks for each rank; those behind the bucket's are zeros.
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t part = (chunks_ + ranks - 1) / ranks * sizeof(QuantizedChunk);
    codes_ = detail::bytes_in(group, part * ranks);
    received_ = detail::bytes_in(group, part * ranks);
    mean_ = detail::bytes_in(group, part);
    codes_.zero_();
  }

  void encode(std::span<const float> gradient) {
    const auto chunks = chunks_in(codes_).first(chunks_);
    if (residual_.kept()) {
      kernels::quantize_with_feedback(gradient, residual_.elements<float>(), chunks);
    } else {
      kernels::quantize(gradient, chunks);
    }
  }

  void refuse_not_finite() const {
    const auto chunks = chunks_in(codes_).first(chunks_);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      if (!std::isnan(chunks[c].scale)) continue;
      const auto element = c * kernels::quantized_chunk + kernels::first_not_finite(chunks[c]);
      detail::refuse_not_finite("int8", layout_.name_at(element),
                                kernels::complaining_rank(chunks[c]));
    }
  }

  detail::Layout layout_;
  std::size_t chunks_;
  detail::Residual residual_;
  at::Tensor codes_;     ///< of the own gradient, then of the mean
  at::Tensor received_;  ///< every rank's codes of this rank's part
  at::Tensor mean_;      ///< of this rank's part
};

/// Ranks share their memory: each averages its chunks of all ranks' gradients where they lie, with
/// their residuals, and writes them to all. Nothing is copied, and codes stay in the processor.
class MeanInPlace final : public Exchange {
 public:
  MeanInPlace(bool error_feedback, const Bucket& bucket)
      : layout_(bucket), residual_(error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    name_places(bucket, group);
    co_await group.all_gather(words_, word_);
    average(static_cast<std::size_t>(bucket.values().numel()), group);
    // No rank goes on before all ranks are through with its memory.
    co_await group.all_gather(words_, word_);
    refuse_not_finite();
  }

  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  /// A rank's message to the others: first the places of its memory, then the findings in its
  /// chunks.
  struct Word {
    std::int64_t values_place;    ///< or the first element that is not finite, -1 for none
    std::int64_t residual_place;  ///< or whose element that is
  };

  static std::span<Word> words_in(const at::Tensor& words) {
    return {static_cast<Word*>(words.data_ptr()), words.nbytes() / sizeof(Word)};
  }

  void name_places(const Bucket& bucket, const Group& group) {
    const auto ranks = static_cast<std::size_t>(group.size());
    if (!word_.defined()) {
      word_ = group.empty({2}, at::kLong);
      words_ = group.empty({2 * group.size()}, at::kLong);
      parts_.resize(ranks);
    }
    // As if codes had gone to the ranks that average them, and their means to all.
    const auto chunks = kernels::quantized_chunks(detail::elements<float>(bucket.values()).size());
    auto& communicator = group.communicator();
    row_ = &detail::GroupStatistics::of(communicator)
                .count(Collective::all_reduce, communicator.source().bucket,
                       (chunks + ranks - 1) / ranks * (ranks + 1) * sizeof(QuantizedChunk));
    const auto place = [&](const at::Tensor& values) {
      return static_cast<std::int64_t>(*group.communicator().place_of(values.data_ptr()));
    };
    words_in(word_)[0] = {.values_place = place(bucket.values()),
                          .residual_place = residual_.kept() ? place(residual_.values()) : -1};
  }

  void average(std::size_t elements, const Group& group) {
    const detail::Working working(row_->working);
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t part =
        (kernels::quantized_chunks(elements) + ranks - 1) / ranks * kernels::quantized_chunk;
    const std::size_t begin = std::min(elements, part * static_cast<std::size_t>(group.rank()));
    const auto memory = [&](std::int64_t place) {
      auto* all = group.communicator().at_place(static_cast<std::uint64_t>(place));
      return reinterpret_cast<float*>(all) + begin;
    };
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto& word = words_in(words_)[rank];
      parts_[rank] = {.values = memory(word.values_place),
                      .residual = residual_.kept() ? memory(word.residual_place) : nullptr};
    }
    const auto bad = kernels::quantized_mean(parts_, std::min(part, elements - begin));
    const auto place = bad ? static_cast<std::int64_t>(begin + bad->element) : -1;
    words_in(word_)[0] = {.values_place = place, .residual_place = bad ? bad->rank : -1};
  }

  void refuse_not_finite() const {
    for (const auto& [element, rank] : words_in(words_)) {
      if (element < 0) continue;
      detail::refuse_not_finite("int8", layout_.name_at(static_cast<std::size_t>(element)),
                                static_cast<int>(rank));
    }
  }

  detail::Layout layout_;
  detail::Residual residual_;
  std::vector<kernels::QuantizedPart> parts_;  ///< of each rank, this rank's chunks
  at::Tensor word_;
  at::Tensor words_;
  CollectiveStatistics* row_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> Int8::exchange(const Bucket& bucket) const {
  detail::expect_dtype("int8", bucket, {at::kFloat});
  const auto* memory = bucket.values().const_data_ptr();
  if (bucket.group().communicator().place_of(memory)) {
    return std::make_unique<MeanInPlace>(error_feedback, bucket);
  }
  return std::make_unique<MeanOfCodes>(error_feedback, bucket);
}

}  // namespace lockstep
