#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <cstring>
#include <iterator>

#include "tests/device/simulation/nccl_api.h"
#include "tests/device/simulation/nccl_world.h"

namespace lockstep::simulation::nccl {
namespace {

/// By the value of ncclDataType_t, from ncclInt8 on. The double does not have uint32 and uint64.
constexpr at::ScalarType none = at::ScalarType::Undefined;
constexpr at::ScalarType types[] = {at::kChar, at::kByte, at::kInt,   none,        at::kLong,
                                    none,      at::kHalf, at::kFloat, at::kDouble, at::kBFloat16};

/// Reduces the elements of each rank from the first on.
at::Tensor reduced(const std::vector<const Announcement*>& ranks,
                   const std::vector<const std::byte*>& memory, std::size_t first) {
  const auto& call = ranks[0]->arguments;
  const auto type = types[call.dtype];
  const auto values_of = [&](std::size_t rank) {
    const auto* in = memory[rank] + ranks[rank]->in + first * width(call.dtype);
    const auto values = at::from_blob(const_cast<std::byte*>(in),
                                      {static_cast<std::int64_t>(call.count)}, at::dtype(type));
    return at::isReducedFloatingType(type) ? values.to(at::kFloat) : values;
  };
  auto result = values_of(0).clone();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const auto next = values_of(rank);
    if (call.op == ncclProd) {
      result.mul_(next);
    } else if (call.op == ncclMax) {
      result = at::maximum(result, next);
    } else if (call.op == ncclMin) {
      result = at::minimum(result, next);
    } else {
      result.add_(next);
    }
  }
  if (call.op == ncclAvg) result.div_(static_cast<std::int64_t>(ranks.size()));
  return result.to(type);
}

}  // namespace

std::size_t width(int dtype) {
  const bool known = dtype >= 0 && dtype < static_cast<int>(std::size(types));
  return known && types[dtype] != none ? c10::elementSize(types[dtype]) : 0;
}

std::vector<std::byte> compute(const std::vector<const Announcement*>& ranks,
                               const std::vector<const std::byte*>& memory, int rank) {
  const auto& call = ranks[0]->arguments;
  const auto bytes = static_cast<std::size_t>(call.count) * width(call.dtype);
  const bool gathers = call.operation == Operation::all_gather;
  std::vector<std::byte> result(bytes * (gathers ? ranks.size() : 1));
  if (bytes == 0) return result;
  if (gathers) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      std::memcpy(result.data() + r * bytes, memory[r] + ranks[r]->in, bytes);
    }
  } else if (call.operation == Operation::broadcast) {
    const auto root = static_cast<std::size_t>(call.root);
    std::memcpy(result.data(), memory[root] + ranks[root]->in, bytes);
  } else {
    const bool scatters = call.operation == Operation::reduce_scatter;
    const auto first = scatters ? static_cast<std::size_t>(rank) * call.count : 0;
    std::memcpy(result.data(), reduced(ranks, memory, first).const_data_ptr(), bytes);
  }
  return result;
}

}  // namespace lockstep::simulation::nccl
