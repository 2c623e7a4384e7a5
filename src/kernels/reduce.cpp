#include "kernels/reduce.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

using Inputs = std::span<const std::byte* const>;
using Outputs = std::span<std::byte* const>;

template <DType kDtype, class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
  using Stored = typename detail::Element<kDtype>::Stored;
  const auto* stored = reinterpret_cast<const Stored*>(from);
  if constexpr (kDtype == DType::f16) {
    return f16_to_f32(d, hn::LoadU(HalfTag<D>(), stored));
  } else if constexpr (kDtype == DType::bf16) {
    return bf16_to_f32(d, hn::LoadU(HalfTag<D>(), stored));
  } else {
    return hn::LoadU(d, stored);
  }
}

template <DType kDtype, class D>
HWY_INLINE void store(D d, hn::Vec<D> values, std::byte* to) {
  using Stored = typename detail::Element<kDtype>::Stored;
  auto* stored = reinterpret_cast<Stored*>(to);
  if constexpr (kDtype == DType::f16) {
    hn::StoreU(f32_to_f16(d, values), HalfTag<D>(), stored);
  } else if constexpr (kDtype == DType::bf16) {
    hn::StoreU(f32_to_bf16(d, values), HalfTag<D>(), stored);
  } else {
    hn::StoreU(values, d, stored);
  }
}

/// Loads two vectors of consecutive elements in the cheapest order. The order does not matter,
/// because elements are independent.
template <DType kDtype, class D>
HWY_INLINE void load_pair(D d, const std::byte* from, hn::Vec<D>& a, hn::Vec<D>& b) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kDtype == DType::bf16) {
    return load_bf16_pair(d, reinterpret_cast<const std::uint16_t*>(from), a, b);
  }
#endif
  a = load<kDtype>(d, from);
  b = load<kDtype>(d, from + hn::Lanes(d) * size_of(kDtype));
}

template <DType kDtype, class D>
HWY_INLINE void store_pair(D d, hn::Vec<D> a, hn::Vec<D> b, std::byte* to) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kDtype == DType::bf16) {
    return store_bf16_pair(d, a, b, reinterpret_cast<std::uint16_t*>(to));
  }
#endif
  store<kDtype>(d, a, to);
  store<kDtype>(d, b, to + hn::Lanes(d) * size_of(kDtype));
}

/// The product modulo 2^8. Highway has no multiplication of bytes: multiplies even and odd bytes
/// separately in 16 bits.
template <class D>
HWY_INLINE hn::Vec<D> multiply_bytes(D d, hn::Vec<D> a, hn::Vec<D> b) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, static_cast<hn::TFromD<D>>(hn::GetLane(a) * hn::GetLane(b)));
#else
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> wide;
  const auto wide_a = hn::BitCast(wide, a);
  const auto wide_b = hn::BitCast(wide, b);
  const auto even = hn::And(hn::Mul(wide_a, wide_b), hn::Set(wide, 0xff));
  const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(wide_a), hn::ShiftRight<8>(wide_b)));
  return hn::BitCast(d, hn::Or(even, odd));
#endif
}

/// The smaller (or larger) of a and b; a if they are equal; NaN if either is NaN.
template <bool kSmaller, class D>
HWY_INLINE hn::Vec<D> extreme(D, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    const auto better = kSmaller ? hn::Lt(b, a) : hn::Gt(b, a);
    return hn::IfThenElse(hn::Or(better, hn::IsNaN(b)), b, a);
  } else {
    return kSmaller ? hn::Min(a, b) : hn::Max(a, b);
  }
}

template <ReduceOp kOp, class D>
HWY_INLINE hn::Vec<D> combine(D d, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (kOp == ReduceOp::band) {
    return hn::And(a, b);
  } else if constexpr (kOp == ReduceOp::bor) {
    return hn::Or(a, b);
  } else if constexpr (kOp == ReduceOp::bxor) {
    return hn::Xor(a, b);
  } else if constexpr (kOp == ReduceOp::min || kOp == ReduceOp::max) {
    return extreme<kOp == ReduceOp::min>(d, a, b);
  } else if constexpr (kOp == ReduceOp::product) {
    if constexpr (sizeof(hn::TFromD<D>) == 1) {
      return multiply_bytes(d, a, b);
    } else {
      return hn::Mul(a, b);
    }
  } else {
    return hn::Add(a, b);
  }
}

/// For avg, divides the sum by the number of ranks. Other reductions need no last step.
template <ReduceOp kOp, class D>
HWY_INLINE hn::Vec<D> finish(D d, hn::Vec<D> values, std::size_t ranks) {
  using Value = hn::TFromD<D>;
  if constexpr (kOp != ReduceOp::avg) {
    return values;
  } else if constexpr (hwy::IsFloat<Value>()) {
    return hn::Mul(values, hn::Set(d, Value{1} / static_cast<Value>(ranks)));
  } else {
    HWY_ALIGN Value lanes[HWY_MAX_BYTES / sizeof(Value)];
    hn::Store(values, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
      lanes[i] = static_cast<Value>(lanes[i] / static_cast<std::int64_t>(ranks));
    }
    return hn::Load(d, lanes);
  }
}

/// The addresses of buffers: copied to an array, so that the compiler can use registers, if their
/// number is known; else the caller's span.
template <class Pointer, std::size_t kCount>
struct Addresses {
  explicit Addresses(std::span<const Pointer> from) {
    for (std::size_t i = 0; i < kCount; ++i) at_[i] = from[i];
  }
  static constexpr std::size_t size() { return kCount; }
  Pointer operator[](std::size_t i) const { return at_[i]; }

 private:
  std::array<Pointer, kCount> at_;
};

template <class Pointer>
struct Addresses<Pointer, 0> : std::span<const Pointer> {
  using std::span<const Pointer>::span;
  explicit Addresses(std::span<const Pointer> from) : std::span<const Pointer>(from) {}
};

/// kRanks is the number of inputs and of outputs; 0 for any numbers.
template <DType kDtype, ReduceOp kOp, std::size_t kRanks>
void reduce_vectors(Inputs input_span, Outputs output_span, std::size_t count) {
  const hn::ScalableTag<typename detail::Element<kDtype>::Value> d;
  const Addresses<const std::byte*, kRanks> inputs(input_span);
  const Addresses<std::byte*, kRanks> outputs(output_span);
  const std::size_t step = hn::Lanes(d) * size_of(kDtype);
  const std::size_t end = count * size_of(kDtype);
  const std::size_t ranks = inputs.size();

  std::size_t at = 0;
  for (; end - at >= 4 * step; at += 4 * step) {
    hn::Vec<decltype(d)> v0, v1, v2, v3;
    load_pair<kDtype>(d, inputs[0] + at, v0, v1);
    load_pair<kDtype>(d, inputs[0] + at + 2 * step, v2, v3);
    for (std::size_t i = 1; i < ranks; ++i) {
      hn::Vec<decltype(d)> w0, w1, w2, w3;
      load_pair<kDtype>(d, inputs[i] + at, w0, w1);
      load_pair<kDtype>(d, inputs[i] + at + 2 * step, w2, w3);
      v0 = combine<kOp>(d, v0, w0);
      v1 = combine<kOp>(d, v1, w1);
      v2 = combine<kOp>(d, v2, w2);
      v3 = combine<kOp>(d, v3, w3);
    }
    v0 = finish<kOp>(d, v0, ranks);
    v1 = finish<kOp>(d, v1, ranks);
    v2 = finish<kOp>(d, v2, ranks);
    v3 = finish<kOp>(d, v3, ranks);
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      store_pair<kDtype>(d, v0, v1, outputs[j] + at);
      store_pair<kDtype>(d, v2, v3, outputs[j] + at + 2 * step);
    }
  }

  // The remaining elements, in a buffer of one vector; the last one may be partial.
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  for (; at < end; at += step) {
    const std::size_t bytes = end - at < step ? end - at : step;
    std::memcpy(lanes, inputs[0] + at, bytes);
    auto v = load<kDtype>(d, lanes);
    for (std::size_t i = 1; i < ranks; ++i) {
      std::memcpy(lanes, inputs[i] + at, bytes);
      v = combine<kOp>(d, v, load<kDtype>(d, lanes));
    }
    store<kDtype>(d, finish<kOp>(d, v, ranks), lanes);
    for (std::size_t j = 0; j < outputs.size(); ++j) std::memcpy(outputs[j] + at, lanes, bytes);
  }
}

template <DType kDtype, ReduceOp kOp>
void reduce_any(Inputs inputs, Outputs outputs, std::size_t count) {
  // Two ranks that reduce in place are the common case.
  if (inputs.size() == 2 && outputs.size() == 2) {
    reduce_vectors<kDtype, kOp, 2>(inputs, outputs, count);
  } else {
    reduce_vectors<kDtype, kOp, 0>(inputs, outputs, count);
  }
}

using Kernel = void (*)(Inputs, Outputs, std::size_t);

/// The arithmetic reductions, sum to product, of the dtypes of numbers, f32 to i16.
constexpr std::size_t arithmetic_ops = static_cast<std::size_t>(ReduceOp::product) + 1;
constexpr std::size_t number_dtypes = static_cast<std::size_t>(DType::i16) + 1;

template <std::size_t... kIndex>
constexpr auto kernel_table(std::index_sequence<kIndex...>) {
  return std::array<Kernel, sizeof...(kIndex)>{
      &reduce_any<all_dtypes[kIndex / arithmetic_ops], all_reduce_ops[kIndex % arithmetic_ops]>...};
}

void reduce(DType dtype, ReduceOp op, Inputs inputs, Outputs outputs, std::size_t count) {
  static constexpr auto kernels =
      kernel_table(std::make_index_sequence<number_dtypes * arithmetic_ops>());
  kernels[static_cast<std::size_t>(dtype) * arithmetic_ops + static_cast<std::size_t>(op)](
      inputs, outputs, count);
}

void reduce_bits(ReduceOp op, Inputs inputs, Outputs outputs, std::size_t bytes) {
  if (op == ReduceOp::band) return reduce_any<DType::u8, ReduceOp::band>(inputs, outputs, bytes);
  if (op == ReduceOp::bor) return reduce_any<DType::u8, ReduceOp::bor>(inputs, outputs, bytes);
  reduce_any<DType::u8, ReduceOp::bxor>(inputs, outputs, bytes);
}

template <DType kDtype>
void multiply_vectors(double factor, const std::byte* input, std::byte* output, std::size_t count) {
  using Value = typename detail::Element<kDtype>::Value;
  const hn::ScalableTag<Value> d;
  const auto factors = hn::Set(d, static_cast<Value>(factor));
  const std::size_t step = hn::Lanes(d) * size_of(kDtype);
  const std::size_t end = count * size_of(kDtype);
  std::size_t at = 0;
  for (; end - at >= step; at += step) {
    store<kDtype>(d, hn::Mul(load<kDtype>(d, input + at), factors), output + at);
  }
  if (at == end) return;
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  std::memcpy(lanes, input + at, end - at);
  store<kDtype>(d, hn::Mul(load<kDtype>(d, lanes), factors), lanes);
  std::memcpy(output + at, lanes, end - at);
}

void multiply(DType dtype, double factor, const std::byte* input, std::byte* output,
              std::size_t count) {
  switch (dtype) {
    case DType::f32:
      return multiply_vectors<DType::f32>(factor, input, output, count);
    case DType::f64:
      return multiply_vectors<DType::f64>(factor, input, output, count);
    case DType::f16:
      return multiply_vectors<DType::f16>(factor, input, output, count);
    default:
      return multiply_vectors<DType::bf16>(factor, input, output, count);
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(reduce);
HWY_EXPORT(reduce_bits);
HWY_EXPORT(multiply);

namespace {

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
}

/// The reduction of bytes that are 0 or 1 which is that of booleans.
ReduceOp of_booleans(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

}  // namespace

void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count) {
  if (count == 0) return;
  if (inputs.size() == 1) {
    // Every reduction of one input is that input.
    for (std::byte* output : outputs) {
      if (output != inputs[0]) std::memcpy(output, inputs[0], count * size_of(dtype));
    }
    return;
  }
  if (is_bitwise(op)) {
    HWY_DYNAMIC_DISPATCH(reduce_bits)(op, inputs, outputs, count * size_of(dtype));
  } else if (dtype == DType::boolean) {
    HWY_DYNAMIC_DISPATCH(reduce)(DType::u8, of_booleans(op), inputs, outputs, count);
  } else {
    const auto arithmetic = op == ReduceOp::premultiplied_sum ? ReduceOp::sum : op;
    HWY_DYNAMIC_DISPATCH(reduce)(dtype, arithmetic, inputs, outputs, count);
  }
}

void multiply(DType dtype, double factor, const std::byte* input, std::byte* output,
              std::size_t count) {
  HWY_DYNAMIC_DISPATCH(multiply)(dtype, factor, input, output, count);
}

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
