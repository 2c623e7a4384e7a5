#include "lockstep/sync/int8.h"

#include <cmath>

#include "lockstep/kernels/quantize.h"
#include "lockstep/sync/layout.h"
#include "lockstep/sync/residual.h"
#include "lockstep/sync/sparse.h"

namespace lockstep {
namespace {

using kernels::QuantizedChunk;

class QuantizedMean final : public Exchange {
 public:
  QuantizedMean(bool error_feedback, const Bucket& bucket)
      : layout_(bucket),
        chunks_(kernels::quantized_chunks(static_cast<std::size_t>(bucket.values().numel()))),
        residual_(error_feedback, bucket) {}

  Work advance(Turn turn, Bucket& bucket, const Group& group) override {
    const auto gradient = detail::elements<float>(bucket.values());
    switch (turn.stage) {
      case 0:
        make_room(group);
        encode(gradient);
        return group.all_to_all(received_, codes_);
      case 1:
        kernels::quantize_mean(chunks_in(received_), static_cast<std::size_t>(group.size()),
                               chunks_in(mean_));
        return group.all_gather(codes_, mean_);
      case 2:
        refuse_not_finite();
        kernels::dequantize(chunks_in(codes_).first(chunks_), gradient);
        return {};
      default:
        return {};
    }
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

}  // namespace

std::unique_ptr<Exchange> Int8::exchange(const Bucket& bucket) const {
  detail::expect_dtype("int8", bucket, {at::kFloat});
  return std::make_unique<QuantizedMean>(error_feedback, bucket);
}

}  // namespace lockstep
