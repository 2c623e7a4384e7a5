#include "bench/round.h"

#include <algorithm>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::bench {

namespace {

constexpr std::size_t round_bytes = 256 << 10;
constexpr std::size_t longest_round = 64;
std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Round::Round(Transport& transport, const Settings& settings, Memory memory, std::size_t bytes)
    : transport_(transport),
      settings_(settings),
      count_(part_count(settings, bytes)),
      length_(settings.collective == Collective::barrier
                  ? longest_round
                  : std::clamp<std::size_t>(round_bytes / bytes, 1, longest_round)),
      pattern_(settings.dtype) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto collective = settings.collective;
  const std::size_t element = size_of(settings.dtype);
  input_count_ = collective == Collective::reduce_scatter ? ranks * count_ : count_;
  std::size_t output_count = collective == Collective::all_gather ? ranks * count_ : count_;
  if (collective == Collective::barrier) input_count_ = output_count = 0;
  output_offset_ = in_place(collective) ? 0 : aligned(input_count_ * element);
  stride_ = output_offset_ + aligned(output_count * element);
  memory_ = transport.allocate(memory, std::max<std::size_t>(stride_ * length_, 64));
}

void Round::fill() {
  for (std::size_t i = 0; i < length_; ++i) {
    const std::size_t start = pattern_start(transport_.rank(), turn_ + i);
    pattern_.fill(input(i), input_count_, start);
  }
  turn_ += length_;
}

void Round::run() {
  for (std::size_t i = 0; i < length_; ++i) {
    switch (settings_.collective) {
      case Collective::all_reduce:
        if (settings_.wire) {
          transport_.all_reduce(output(i), count_, settings_.op, {.dtype = *settings_.wire});
        } else {
          transport_.all_reduce(output(i), count_, settings_.dtype, settings_.op);
        }
        break;
      case Collective::broadcast:
        transport_.broadcast(output(i), count_, settings_.dtype, 0);
        break;
      case Collective::all_gather:
        transport_.all_gather(input(i), output(i), count_, settings_.dtype);
        break;
      case Collective::reduce_scatter:
        transport_.reduce_scatter(input(i), output(i), count_, settings_.dtype, settings_.op);
        break;
      case Collective::barrier:
        transport_.barrier();
        break;
      default:
        throw InvalidArgument(
            lockstep::detail::concat("bench: ", name(settings_.collective), " is not measured"));
    }
  }
}

std::int64_t Round::count_wrong() const {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < length_; ++i) wrong += count_wrong(i);
  return wrong;
}

std::int64_t Round::count_wrong(std::size_t i) const {
  std::vector<std::size_t> starts;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    starts.push_back(pattern_start(rank, turn_ - length_ + i));
  }
  const std::byte* result = output(i);
  switch (settings_.collective) {
    case Collective::all_reduce:
      return pattern_.reduced(settings_.op, starts, settings_.wire).count_wrong(result, count_, 0);
    case Collective::broadcast:
      return pattern_.count_wrong(result, count_, starts[0]);
    case Collective::all_gather: {
      std::int64_t wrong = 0;
      for (const std::size_t start : starts) {
        wrong += pattern_.count_wrong(result, count_, start);
        result += count_ * size_of(settings_.dtype);
      }
      return wrong;
    }
    case Collective::reduce_scatter: {
      const std::size_t begin = static_cast<std::size_t>(transport_.rank()) * count_;
      return pattern_.reduced(settings_.op, starts).count_wrong(result, count_, begin);
    }
    default:
      return 0;
  }
}

}  // namespace lockstep::bench
