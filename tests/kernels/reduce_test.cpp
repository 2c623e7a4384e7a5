#include "kernels/reduce.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "bench/reference/kernels.h"
#include "core/text.h"
#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

constexpr std::size_t reduce_counts[] = {0,  1,  2,  3,  7,  15,  16,   17,
                                         31, 33, 63, 64, 65, 127, 1000, 4097};

/// Random bits: every class of float occurs, mixed with values of like size and the borders of
/// rounding.
template <DType kDtype>
std::vector<std::byte> random_elements(std::size_t count, std::mt19937_64& random) {
  using Stored = typename detail::Element<kDtype>::Stored;
  std::vector<std::byte> bytes(count * sizeof(Stored));
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) {
    Stored value;
    const std::uint64_t bits = kDtype == DType::boolean ? random() % 2 : random();
    if (bits % 4 == 0 || std::is_integral_v<Stored>) {
      std::memcpy(&value, &bits, sizeof value);
    }
    if (bits % 4 != 0) {
      const float number = bits % 4 == 1 ? std::round(8 * normal(random)) : normal(random);
      if constexpr (kDtype == DType::f16) {
        value = reference::to_f16(number);
      } else if constexpr (kDtype == DType::bf16) {
        value = reference::to_bf16(number);
      } else if constexpr (!std::is_integral_v<Stored>) {
        value = static_cast<Stored>(number);
      }
    }
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

/// Which of two NaN payloads survives is the processor's business; all else must agree in every
/// bit.
template <DType kDtype>
bool same_element(const std::byte* a, const std::byte* b) {
  using Stored = typename detail::Element<kDtype>::Stored;
  if (std::memcmp(a, b, sizeof(Stored)) == 0) return true;
  Stored x;
  Stored y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  if constexpr (kDtype == DType::f16) {
    return std::isnan(reference::from_f16(x)) && std::isnan(reference::from_f16(y));
  } else if constexpr (kDtype == DType::bf16) {
    return std::isnan(reference::from_bf16(x)) && std::isnan(reference::from_bf16(y));
  } else {
    return x != x && y != y;
  }
}

enum class Place { apart, on_first, on_all };

struct Case {
  ReduceOp op;
  std::size_t inputs;
  std::size_t count;
  std::size_t misalignment;
  Place place;

  std::string text() const {
    return lockstep::detail::concat(name(op), " of ", inputs, " x ", count, " at +", misalignment,
                                    ", place ", static_cast<int>(place));
  }
};

template <DType kDtype>
void check(const Case& c, std::mt19937_64& random) {
  const std::size_t bytes = c.count * size_of(kDtype);
  std::vector<std::vector<std::byte>> original;
  std::vector<Buffer> inputs;
  for (std::size_t i = 0; i < c.inputs; ++i) {
    original.push_back(random_elements<kDtype>(c.count, random));
    inputs.emplace_back(bytes, (c.misalignment * (i + 1)) % 64).assign(original.back());
  }
  std::vector<Buffer> apart;
  for (std::size_t j = 0; j < 3; ++j) apart.emplace_back(bytes, (c.misalignment + 5 * j) % 64);

  std::vector<const std::byte*> from;
  for (Buffer& input : inputs) from.push_back(input.data());
  std::vector<std::byte*> to;
  if (c.place == Place::apart) {
    for (Buffer& buffer : apart) to.push_back(buffer.data());
  } else {
    const std::size_t outputs = c.place == Place::on_first ? 1 : c.inputs;
    for (std::size_t j = 0; j < outputs; ++j) to.push_back(inputs[j].data());
  }
  reduce(kDtype, c.op, from, to, c.count);

  std::vector<std::byte> expected(bytes);
  std::byte* expected_data = expected.data();
  std::vector<const std::byte*> original_data;
  for (const auto& input : original) original_data.push_back(input.data());
  reference::reduce(kDtype, c.op, original_data, {&expected_data, 1}, c.count);

  for (const std::byte* output : to) {
    for (std::size_t at = 0; at < bytes; at += size_of(kDtype)) {
      ASSERT_TRUE(same_element<kDtype>(output + at, expected_data + at))
          << c.text() << ", element " << at / size_of(kDtype);
    }
    ASSERT_EQ(std::memcmp(output, to[0], bytes), 0) << c.text() << ": outputs differ";
  }
  for (std::size_t i = 0; i < c.inputs; ++i) {
    ASSERT_TRUE(inputs[i].guards_untouched()) << c.text() << ", around input " << i;
    const bool is_output = std::find(to.begin(), to.end(), inputs[i].data()) != to.end();
    ASSERT_TRUE(is_output || std::ranges::equal(inputs[i].contents(), original[i]))
        << c.text() << ", input " << i << " changed";
  }
  for (const Buffer& buffer : apart) ASSERT_TRUE(buffer.guards_untouched()) << c.text();
}

template <DType kDtype>
void check_all(ReduceOp op) {
  std::mt19937_64 random(static_cast<std::uint64_t>(kDtype) * 8 + static_cast<std::uint64_t>(op));
  for (std::size_t inputs = 1; inputs <= 8; ++inputs) {
    for (const std::size_t count : reduce_counts) {
      // Every misalignment has its turn at every count, the large ones at one each.
      const std::size_t few = count > 200 ? 1 : 4;
      for (std::size_t k = 0; k < few; ++k) {
        const std::size_t misalignment = k == 0 ? 0 : random() % 64;
        for (const Place place : {Place::apart, Place::on_first, Place::on_all}) {
          check<kDtype>({op, inputs, count, misalignment, place}, random);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Whether the dtype is one of those, which are checked.
template <DType... kDtypes>
bool check_one_of(DType dtype, ReduceOp op) {
  return ((dtype == kDtypes && (check_all<kDtypes>(op), true)) || ...);
}

class ReduceOnTarget : public OnTarget {};

TEST_P(ReduceOnTarget, EqualsTheReferenceInEveryBit) {
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!has_reduction(dtype, op)) continue;
      SCOPED_TRACE(name(dtype));
      EXPECT_TRUE(
          (check_one_of<DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8, DType::u8,
                        DType::i16, DType::boolean, DType::i32, DType::i64>(dtype, op)));
      if (HasFatalFailure()) return;
    }
  }
}

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> result(a.size());
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(a.data()),
                               reinterpret_cast<const std::byte*>(b.data())};
  std::byte* outputs[] = {reinterpret_cast<std::byte*>(result.data())};
  reduce(dtype, op, inputs, outputs, a.size());
  return result;
}

// The larger of x and x is x, so nothing but the conversions can err.
template <DType kDtype>
void check_every_half() {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const auto result = reduced(kDtype, ReduceOp::max, all, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(same_element<kDtype>(reinterpret_cast<const std::byte*>(&result[i]),
                                     reinterpret_cast<const std::byte*>(&all[i])))
        << name(kDtype) << " " << i;
  }
}

TEST_P(ReduceOnTarget, KeepsEveryHalf) {
  check_every_half<DType::f16>();
  check_every_half<DType::bf16>();
}

INSTANTIATE_TEST_SUITE_P(Cpu, ReduceOnTarget, every_target(), target_name);

template <DType kDtype>
void check_products() {
  using Stored = typename detail::Element<kDtype>::Stored;
  std::mt19937_64 random(7);
  for (const std::size_t count : reduce_counts) {
    const auto numbers = random_elements<kDtype>(count, random);
    constexpr double factor = 0.3;
    Buffer input(numbers.size(), 8);
    input.assign(numbers);
    Buffer output(numbers.size(), 24);
    multiply(kDtype, factor, input.data(), output.data(), count);
    ASSERT_TRUE(output.guards_untouched());
    for (std::size_t i = 0; i < count; ++i) {
      Stored from;
      std::memcpy(&from, numbers.data() + i * sizeof from, sizeof from);
      Stored expected;
      if constexpr (kDtype == DType::f16) {
        expected = reference::to_f16(reference::from_f16(from) * static_cast<float>(factor));
      } else if constexpr (kDtype == DType::bf16) {
        expected = reference::to_bf16(reference::from_bf16(from) * static_cast<float>(factor));
      } else {
        expected = from * static_cast<Stored>(factor);
      }
      ASSERT_TRUE(same_element<kDtype>(output.data() + i * sizeof from,
                                       reinterpret_cast<const std::byte*>(&expected)))
          << name(kDtype) << " element " << i << " of " << count;
    }
    multiply(kDtype, factor, input.data(), input.data(), count);
    ASSERT_TRUE(std::ranges::equal(input.contents(), output.contents()));
  }
}

TEST_P(ReduceOnTarget, Multiplies) {
  check_products<DType::f32>();
  check_products<DType::f64>();
  check_products<DType::f16>();
  check_products<DType::bf16>();
}

TEST(Reduce, MinAndMaxPassNanOnFromEitherSideAndIntegersAreAveragedTowardZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [op, expected] : {std::pair(ReduceOp::min, 2), std::pair(ReduceOp::max, 3)}) {
    const auto result = reduced<float>(DType::f32, op, {nan, 1, 2}, {1, nan, 3});
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
    EXPECT_EQ(result[2], expected);
  }
  EXPECT_EQ(reduced<std::int32_t>(DType::i32, ReduceOp::avg, {-3, 3, -4, 7}, {0, 0, 1, -2}),
            (std::vector<std::int32_t>{-1, 1, -1, 2}));
}

}  // namespace
}  // namespace lockstep::kernels
