#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

/// avg is sum, then one multiplication by 1/N; for integers it is the sum divided by N, rounded
/// toward zero. min and max pass NaN on.
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product };

inline constexpr ReduceOp all_reduce_ops[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min,
                                              ReduceOp::max, ReduceOp::product};

std::string_view name(ReduceOp op);

/// The reduce operation of a name, "sum" and so on.
/// Throws: InvalidArgument listing the valid names.
ReduceOp parse_reduce_op(std::string_view text);

}  // namespace lockstep
