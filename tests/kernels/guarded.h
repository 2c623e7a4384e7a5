#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::kernels {

inline constexpr std::size_t guard_bytes = 64;
inline constexpr std::byte guard{0xa5};

/// count elements at a chosen misalignment, between guard bytes.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t misalignment)
      : memory_(bytes + 2 * guard_bytes + 128, guard), bytes_(bytes) {
    void* start = memory_.data() + guard_bytes;
    std::size_t space = memory_.size();
    start_ = static_cast<std::byte*>(std::align(64, 1, start, space)) + misalignment;
  }

  std::byte* data() { return start_; }
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(start_), bytes_ / sizeof(T)};
  }
  std::span<const std::byte> contents() const { return {start_, bytes_}; }
  void assign(std::span<const std::byte> contents) {
    std::copy(contents.begin(), contents.end(), start_);
  }
  bool guards_untouched() const {
    const std::byte* end = start_ + bytes_;
    const auto is_guard = [](std::byte b) { return b == guard; };
    return std::all_of(memory_.data(), const_cast<const std::byte*>(start_), is_guard) &&
           std::all_of(end, memory_.data() + memory_.size(), is_guard);
  }

 private:
  std::vector<std::byte> memory_;
  std::byte* start_;
  std::size_t bytes_;
};

/// Makes kernels use one instruction set while it lives.
class OnlyTarget {
 public:
  explicit OnlyTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
  }
  ~OnlyTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

/// A suite whose tests run once for each instruction set:
/// INSTANTIATE_TEST_SUITE_P(Cpu, SUITE, every_target(), target_name);
class OnTarget : public ::testing::TestWithParam<std::int64_t> {
  OnlyTarget only_{GetParam()};
};
inline auto every_target() { return ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()); }
inline std::string target_name(const ::testing::TestParamInfo<std::int64_t>& target) {
  return hwy::TargetName(target.param);
}

/// Of every size that halves have, and among them denormals, of which bfloat16 rounds some to a
/// normal number, bfloat16 values, infinities and NaN.
inline std::vector<float> values_of_all_kinds(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    auto bits = static_cast<std::uint32_t>(random());
    const auto kind = random() % 64;
    value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)),
                       static_cast<int>(random() % 48) - 61);
    if (kind >= 25) continue;
    if (kind < 4) bits = (kind < 2 ? bits : bits & 0x80000000) | 0x7f800000;
    if (kind >= 9 && kind < 17) bits &= 0xffff0000;
    if (kind >= 17) bits = (bits & 0x807fffff) | (random() % 2 == 0 ? 0x7fff00 : 0);
    value = std::bit_cast<float>(bits);
  }
  return values;
}

/// Of float: alignments that kernels may meet.
inline constexpr std::size_t float_misalignments[] = {0, 4, 12, 36, 60};

}  // namespace lockstep::kernels
