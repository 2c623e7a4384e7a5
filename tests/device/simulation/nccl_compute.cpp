#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>

#include "tests/device/simulation/nccl_api.h"
#include "tests/device/simulation/nccl_world.h"

namespace lockstep::simulation::nccl {
namespace {

struct Bfloat16 {
  std::uint16_t bits = 0;
  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t even = (all >> 16) & 1;  // ties go to even
    bits = static_cast<std::uint16_t>(std::isnan(value) ? 0x7fc0 : (all + 0x7fff + even) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
using Float16 = _Float16;
#pragma GCC diagnostic pop

template <class Value>
Value combine(int op, Value a, Value b) {
  switch (op) {
    case ncclProd:
      return static_cast<Value>(a * b);
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return static_cast<Value>(a + b);
  }
}

/// Element is what memory holds, Value what is computed with.
template <class Element, class Value>
void reduce(const std::vector<const Announcement*>& ranks,
            const std::vector<const std::byte*>& memory, std::size_t first, std::byte* out) {
  const auto& call = ranks[0]->arguments;
  const auto count = static_cast<std::size_t>(call.count);
  std::vector<Value> sum(count);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto* in = reinterpret_cast<const Element*>(memory[r] + ranks[r]->in) + first;
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<Value>(in[i]);
      sum[i] = r == 0 ? value : combine(call.op, sum[i], value);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (call.op == ncclAvg) sum[i] = static_cast<Value>(sum[i] / static_cast<Value>(ranks.size()));
    const auto element = static_cast<Element>(sum[i]);
    std::memcpy(out + i * sizeof(Element), &element, sizeof(Element));
  }
}

struct Dtype {
  std::size_t width;
  void (*reduce)(const std::vector<const Announcement*>&, const std::vector<const std::byte*>&,
                 std::size_t, std::byte*);
};
template <class Element, class Value = Element>
constexpr Dtype of{sizeof(Element), reduce<Element, Value>};

Dtype dtype_of(int dtype) {
  static const auto& dtypes = *new std::map<int, Dtype>{
      {ncclInt8, of<std::int8_t>},       {ncclUint8, of<std::uint8_t>},
      {ncclInt32, of<std::int32_t>},     {ncclInt64, of<std::int64_t>},
      {ncclFloat16, of<Float16, float>}, {ncclFloat32, of<float>},
      {ncclFloat64, of<double>},         {ncclBfloat16, of<Bfloat16, float>},
  };
  const auto found = dtypes.find(dtype);
  return found != dtypes.end() ? found->second : Dtype{0, nullptr};
}

}  // namespace

std::size_t width(int dtype) { return dtype_of(dtype).width; }

std::vector<std::byte> compute(const std::vector<const Announcement*>& ranks,
                               const std::vector<const std::byte*>& memory, int rank) {
  const auto& call = ranks[0]->arguments;
  const auto bytes = static_cast<std::size_t>(call.count) * width(call.dtype);
  std::vector<std::byte> result(bytes *
                                (call.operation == Operation::all_gather ? ranks.size() : 1));
  if (bytes == 0) return result;
  const auto copy = [&](std::size_t from, std::byte* to) {
    std::memcpy(to, memory[from] + ranks[from]->in, bytes);
  };
  switch (call.operation) {
    case Operation::all_gather:
      for (std::size_t r = 0; r < ranks.size(); ++r) copy(r, result.data() + r * bytes);
      break;
    case Operation::broadcast:
      copy(static_cast<std::size_t>(call.root), result.data());
      break;
    case Operation::reduce_scatter:
      dtype_of(call.dtype)
          .reduce(ranks, memory, static_cast<std::size_t>(rank) * call.count, result.data());
      break;
    default:
      dtype_of(call.dtype).reduce(ranks, memory, 0, result.data());
  }
  return result;
}

}  // namespace lockstep::simulation::nccl
