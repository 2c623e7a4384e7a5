#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "averaging/average.h"
#include "comm/communicator.h"
#include "comm/waiting.h"
#include "kernels/quantize.h"
#include "profile/group_statistics.h"

namespace lockstep::inline v0_2::averaging {
namespace {

using kernels::QuantizedChunk;

/// Ranks send codes to the rank that averages them, which sends the mean to all ranks as codes.
class Int8Average final : public Average {
 public:
  Int8Average(bool error_feedback, const Averaged& averaged)
      : Average(error_feedback, averaged),
        chunks_(kernels::quantized_chunks(averaged.elements.count)) {}

  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    const auto gradient = elements.as<float>();
    allocate_buffers(group);
    const auto chunks = codes_.as<QuantizedChunk>().first(chunks_);
    if (residual_.defined()) {
      kernels::quantize_with_feedback(gradient, residual_.as<float>(), chunks);
    } else {
      kernels::quantize(gradient, chunks);
    }
    co_await all_to_all(group, received_, codes_);
    kernels::quantize_mean(received_.as<QuantizedChunk>(), static_cast<std::size_t>(group.size()),
                           mean_.as<QuantizedChunk>());
    co_await all_gather(group, codes_, mean_);
    expect_finite(chunks, group);
    kernels::dequantize(chunks, gradient);
  }

 private:
  void allocate_buffers(Communicator& group) {
    if (codes_.defined()) return;
    // All ranks average the same number of chunks; those after the bucket's last are zero.
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t part = (chunks_ + ranks - 1) / ranks * sizeof(QuantizedChunk);
    codes_ = Buffer(group, part * ranks);
    received_ = Buffer(group, part * ranks);
    mean_ = Buffer(group, part);
    codes_.fill_with_zeros();
  }

  void expect_finite(std::span<const QuantizedChunk> chunks, const Communicator& group) const {
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      if (!std::isnan(chunks[c].scale)) continue;
      const auto element = c * kernels::quantized_chunk + kernels::first_not_finite(chunks[c]);
      refuse_not_finite("int8", arrays_.name_at(element), kernels::rank_not_finite(chunks[c]),
                        group);
    }
  }

  std::size_t chunks_;
  Buffer codes_;     ///< codes of this rank's gradient, then of the mean
  Buffer received_;  ///< every rank's codes of the part that this rank averages
  Buffer mean_;      ///< codes of the mean of that part
};

/// For ranks that share memory. Each rank averages its chunks of all ranks' gradients and residuals
/// in place, and writes the mean into all gradients. Codes exist only in registers.
class InPlaceInt8Average final : public Average {
 public:
  using Average::Average;

  ExchangeTask exchange(std::int64_t, Elements elements, Communicator& group) override {
    write_addresses(elements, group);
    co_await all_gather(group, messages_, message_);
    average(elements.count, group);
    // Every rank waits until no other rank accesses its memory.
    co_await all_gather(group, messages_, message_);
    expect_finite(group);
  }

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

  void write_addresses(const Elements& elements, Communicator& group) {
    const auto ranks = static_cast<std::size_t>(group.size());
    if (!message_.defined()) {
      message_ = Buffer(group, sizeof(Addresses));
      messages_ = Buffer(group, sizeof(Addresses) * ranks);
      parts_.resize(ranks);
    }
    // Counts the bytes that Int8Average would send.
    const auto chunks = kernels::quantized_chunks(elements.count);
    row_ = &detail::GroupStatistics::of(group).count(
        Collective::all_reduce, group.source().bucket,
        (chunks + ranks - 1) / ranks * (ranks + 1) * sizeof(QuantizedChunk));
    const auto address = [&](const void* memory) {
      return static_cast<std::int64_t>(*group.place_of(memory));
    };
    message_.as<Addresses>()[0] = {
        .values = address(elements.data),
        .residual = residual_.defined() ? address(residual_.data()) : -1};
  }

  void average(std::size_t count, Communicator& group) {
    const detail::WorkTimer timer(row_->working);
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t part =
        (kernels::quantized_chunks(count) + ranks - 1) / ranks * kernels::quantized_chunk;
    const std::size_t begin = std::min(count, part * static_cast<std::size_t>(group.rank()));
    const auto memory = [&](std::int64_t address) {
      auto* all = group.at_place(static_cast<std::uint64_t>(address));
      return reinterpret_cast<float*>(all) + begin;
    };
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto& addresses = messages_.as<Addresses>()[rank];
      parts_[rank] = {.values = memory(addresses.values),
                      .residual = residual_.defined() ? memory(addresses.residual) : nullptr};
    }
    const auto bad = kernels::quantized_mean(parts_, std::min(part, count - begin));
    const auto element = bad ? static_cast<std::int64_t>(begin + bad->element) : -1;
    message_.as<NotFinite>()[0] = {.element = element, .rank = bad ? bad->rank : -1};
  }

  void expect_finite(const Communicator& group) const {
    for (const auto& [element, rank] : messages_.as<NotFinite>()) {
      if (element < 0) continue;
      refuse_not_finite("int8", arrays_.name_at(static_cast<std::size_t>(element)),
                        static_cast<int>(rank), group);
    }
  }

  std::vector<kernels::QuantizedPart> parts_;  ///< per rank, the chunks that this rank averages
  Buffer message_;
  Buffer messages_;
  CollectiveStatistics* row_ = nullptr;
};

}  // namespace

std::unique_ptr<Average> create(const Int8& strategy, const Averaged& averaged) {
  expect_dtype("int8", averaged, {DType::f32});
  if (averaged.group.place_of(averaged.elements.data))
    return std::make_unique<InPlaceInt8Average>(strategy.error_feedback, averaged);
  return std::make_unique<Int8Average>(strategy.error_feedback, averaged);
}

}  // namespace lockstep::averaging
