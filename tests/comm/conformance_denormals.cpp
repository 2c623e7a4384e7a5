#include <cstdint>
#include <cstring>

#include "comm/communicator.h"
#include "lockstep/denormals.h"
#include "tests/comm/conformance.h"
#include "tests/comm/oracle.h"

namespace lockstep::testing {
namespace {

using lockstep::detail::concat;

/// Sent with the announcement, staged, and by more than one thread where there are several.
constexpr std::size_t denormal_counts[] = {3, 1000, 300'001};

/// Elements whose bits are small whole numbers: so many times the least denormal.
template <class Bits, class Multiple>
Bytes make_denormals(std::size_t count, const Multiple& multiple) {
  Bytes bytes(count * sizeof(Bits));
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<Bits>(multiple(static_cast<int>(i % 3)));
    std::memcpy(bytes.data() + i * sizeof bits, &bits, sizeof bits);
  }
  return bytes;
}

template <class Bits>
void all_reduce_denormals(Communicator& group, DType dtype, bool zero) {
  const int n = group.size();
  const auto own = [&](int extra) { return 1 + group.rank() + extra; };
  const auto sum = [&](int extra) { return zero ? 0 : n * (n + 1) / 2 + n * extra; };
  for (const std::size_t count : denormal_counts) {
    for (const Place place : {Place::group, Place::elsewhere}) {
      const Buffer data(group, place, make_denormals<Bits>(count, own));
      group.all_reduce(data.data(), count, dtype, ReduceOp::sum).wait();
      data.expect(make_denormals<Bits>(count, sum),
                  concat("all_reduce of denormal ", name(dtype), " count ", count, " of rank ",
                         group.rank()));
    }
  }
}

}  // namespace

void check_denormals(Communicator& group) {
  // One rank adds nothing.
  const bool zero = flushes_denormals() && group.size() > 1;
  all_reduce_denormals<std::uint32_t>(group, DType::f32, zero);
  all_reduce_denormals<std::uint64_t>(group, DType::f64, zero);
  all_reduce_denormals<std::uint16_t>(group, DType::bf16, zero);
  // They are added as float32, in which they are normal.
  all_reduce_denormals<std::uint16_t>(group, DType::f16, false);
}

}  // namespace lockstep::testing
