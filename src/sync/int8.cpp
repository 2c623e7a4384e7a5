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
#include "sync/host_exchange.h"
#include "sync/residual.h"
#include "sync/sparse.h"

namespace lockstep::inline v0_2 {
namespace {

using kernels::QuantizedChunk;

/// Ranks send codes to the rank that averages them, which sends the mean to all ranks as codes.
class Int8Exchange final : public Exchange {
 public:
  Int8Exchange(bool error_feedback, const Bucket& bucket)
      : layout_(bucket),
        chunks_(kernels::quantized_chunks(static_cast<std::size_t>(bucket.values().numel()))),
        residual_(error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    const auto gradient = detail::elements<float>(bucket.values());
    allocate_buffers(group);
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

  void allocate_buffers(const Group& group) {
    if (codes_.defined()) return;
    // All ranks average the same number of chunks; those after the bucket's last are zero.
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
                                kernels::rank_not_finite(chunks[c]));
    }
  }

  detail::Layout layout_;
  std::size_t chunks_;
  detail::Residual residual_;
  at::Tensor codes_;     ///< codes of this rank's gradient, then of the mean
  at::Tensor received_;  ///< every rank's codes of the part that this rank averages
  at::Tensor mean_;      ///< codes of the mean of that part
};

/// For ranks that share memory. Each rank averages its chunks of all ranks' gradients and residuals
/// in place, and writes the mean into all gradients. Codes exist only in registers.
class InPlaceInt8Exchange final : public Exchange {
 public:
  InPlaceInt8Exchange(bool error_feedback, const Bucket& bucket)
      : layout_(bucket), residual_(error_feedback, bucket) {}

  ExchangeTask exchange(std::int64_t, Bucket& bucket, const Group& group) override {
    write_addresses(bucket, group);
    co_await group.all_gather(messages_, message_);
    average(static_cast<std::size_t>(bucket.values().numel()), group);
    // Every rank waits until no other rank accesses its memory.
    co_await group.all_gather(messages_, message_);
    refuse_not_finite();
  }

  State state() const override { return residual_.state(layout_); }
  void load(const State& state) override { residual_.load(layout_, state); }

 private:
  /// The content of the first all_gather: the addresses of a rank's memory.
  struct Addresses {
    std::int64_t values;
    std::int64_t residual;  ///< -1 without error feedback
  };

  /// The content of the second all_gather: the first element of a rank's chunks that is not finite.
  struct NotFinite {
    std::int64_t element;  ///< -1 for none
    std::int64_t rank;     ///< the rank whose gradient has it
  };
  static_assert(sizeof(NotFinite) == sizeof(Addresses));

  template <class Message>
  static std::span<Message> messages_in(const at::Tensor& memory) {
    return {static_cast<Message*>(memory.data_ptr()), memory.nbytes() / sizeof(Message)};
  }

  void write_addresses(const Bucket& bucket, const Group& group) {
    const auto ranks = static_cast<std::size_t>(group.size());
    if (!message_.defined()) {
      message_ = group.empty({2}, at::kLong);
      messages_ = group.empty({2 * group.size()}, at::kLong);
      parts_.resize(ranks);
    }
    // Counts the bytes that Int8Exchange would send.
    const auto chunks = kernels::quantized_chunks(detail::elements<float>(bucket.values()).size());
    auto& communicator = group.communicator();
    row_ = &detail::GroupStatistics::of(communicator)
                .count(Collective::all_reduce, communicator.source().bucket,
                       (chunks + ranks - 1) / ranks * (ranks + 1) * sizeof(QuantizedChunk));
    const auto address = [&](const at::Tensor& values) {
      return static_cast<std::int64_t>(*group.communicator().place_of(values.data_ptr()));
    };
    messages_in<Addresses>(message_)[0] = {
        .values = address(bucket.values()),
        .residual = residual_.kept() ? address(residual_.values()) : -1};
  }

  void average(std::size_t elements, const Group& group) {
    const detail::WorkTimer timer(row_->working);
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t part =
        (kernels::quantized_chunks(elements) + ranks - 1) / ranks * kernels::quantized_chunk;
    const std::size_t begin = std::min(elements, part * static_cast<std::size_t>(group.rank()));
    const auto memory = [&](std::int64_t address) {
      auto* all = group.communicator().at_place(static_cast<std::uint64_t>(address));
      return reinterpret_cast<float*>(all) + begin;
    };
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto& addresses = messages_in<Addresses>(messages_)[rank];
      parts_[rank] = {.values = memory(addresses.values),
                      .residual = residual_.kept() ? memory(addresses.residual) : nullptr};
    }
    const auto bad = kernels::quantized_mean(parts_, std::min(part, elements - begin));
    const auto element = bad ? static_cast<std::int64_t>(begin + bad->element) : -1;
    messages_in<NotFinite>(message_)[0] = {.element = element, .rank = bad ? bad->rank : -1};
  }

  void refuse_not_finite() const {
    for (const auto& [element, rank] : messages_in<NotFinite>(messages_)) {
      if (element < 0) continue;
      detail::refuse_not_finite("int8", layout_.name_at(static_cast<std::size_t>(element)),
                                static_cast<int>(rank));
    }
  }

  detail::Layout layout_;
  detail::Residual residual_;
  std::vector<kernels::QuantizedPart> parts_;  ///< per rank, the chunks that this rank averages
  at::Tensor message_;
  at::Tensor messages_;
  CollectiveStatistics* row_ = nullptr;
};

}  // namespace

std::unique_ptr<Exchange> Int8::exchange(const Bucket& bucket) const {
  detail::expect_dtype("int8", bucket, {at::kFloat});
  if (detail::is_on_device(bucket)) {
    return detail::exchange_on_host(bucket, [this](const Bucket& host) { return exchange(host); });
  }
  const auto* memory = bucket.values().const_data_ptr();
  if (bucket.group().communicator().place_of(memory)) {
    return std::make_unique<InPlaceInt8Exchange>(error_feedback, bucket);
  }
  return std::make_unique<Int8Exchange>(error_feedback, bucket);
}

}  // namespace lockstep
