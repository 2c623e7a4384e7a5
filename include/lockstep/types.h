#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::inline v0_2 {

/// Element types of collectives. f16 is IEEE binary16; bf16 has the upper 16 bits of an f32. An
/// element of boolean is one byte, 0 or 1.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i8, u8, i32, i64, i16, boolean };

/// The source of a receive that takes a message from any rank.
inline constexpr int any_source = -1;

inline constexpr DType all_dtypes[] = {DType::f32, DType::f64,    DType::f16, DType::bf16,
                                       DType::i8,  DType::u8,     DType::i32, DType::i64,
                                       DType::i16, DType::boolean};

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

/// The name as LibTorch users know it: "float32", "bfloat16", and so on.
std::string_view name(DType dtype);

/// The dtype with this name: "float32" or "f32", and so on.
/// Throws: InvalidArgument listing the valid names.
DType parse_dtype(std::string_view text);

/// Reductions over N ranks. Sums and products of integers are modulo 2^bits. avg multiplies the sum
/// by 1/N; for integers it divides that sum by N and rounds toward zero. min and max return NaN if
/// an input is NaN. band, bor and bxor are the bitwise and, or and exclusive or. Of booleans, sum
/// and max are the logical or, product and min the logical and.
enum class ReduceOp : std::uint8_t {
  sum,
  avg,
  min,
  max,
  product,
  band,
  bor,
  bxor,
  premultiplied_sum  ///< each rank multiplies its input by a factor of its own; see Reduction
};

/// The reductions without an argument: all but premultiplied_sum.
inline constexpr ReduceOp all_reduce_ops[] = {ReduceOp::sum, ReduceOp::avg,     ReduceOp::min,
                                              ReduceOp::max, ReduceOp::product, ReduceOp::band,
                                              ReduceOp::bor, ReduceOp::bxor};

/// Whether elements of this dtype have the reduction. band, bor and bxor are of integers and
/// booleans, premultiplied_sum is of floats. Booleans have no avg.
constexpr bool has_reduction(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return !is_floating(dtype);
    case ReduceOp::premultiplied_sum:
      return is_floating(dtype);
    case ReduceOp::avg:
      return dtype != DType::boolean;
    default:
      return true;
  }
}

std::string_view name(ReduceOp op);

/// The reduce operation with this name: "sum", "avg", "min", "max", "product", "band", "bor" or
/// "bxor".
/// Throws: InvalidArgument listing the valid names.
ReduceOp parse_reduce_op(std::string_view text);

/// A reduction with its argument. A ReduceOp converts to it.
struct Reduction {
  constexpr Reduction(ReduceOp reduce_op) : op(reduce_op) {}

  ReduceOp op;
  double factor = 1;  ///< of this rank, for premultiplied_sum
};

/// The sum of the ranks' inputs, each multiplied by the factor that its rank passes. Products are
/// rounded to the dtype before the sum.
constexpr Reduction premultiplied_sum(double factor) {
  Reduction reduction(ReduceOp::premultiplied_sum);
  reduction.factor = factor;
  return reduction;
}

/// The kinds of operations that a group issues.
enum class Collective : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  send,
  recv,
  barrier,
  reduce
};

std::string_view name(Collective collective);

/// The reduced precision in which float32 elements are sent in a reduction: f16 or bf16. The sum is
/// computed in float32 over N ranks. Ranks of one host round elements when they read them and write
/// no copy.
/// contribution = round(clamp(x, -clip, clip) · (predivide ? 1/N : 1)); NaN stays NaN.
/// result = round((contribution of rank 0 + …) · (predivide ? 1 : 1/N)), without the factor 1/N for
/// a sum.
struct Wire {
  DType dtype = DType::f16;
  float clip = 0;          ///< largest magnitude of an element; 0 disables clipping
  bool predivide = false;  ///< for avg: divide before rounding, so that sums do not overflow

  bool operator==(const Wire&) const = default;
};

/// Where the collectives of a world exchange data.
enum class Backend {
  automatic,     ///< host if all ranks are on one host, else hierarchical
  host,          ///< shared memory of one host
  mpi,           ///< MPI only, also between ranks of one host
  hierarchical,  ///< shared memory inside each host; MPI between hosts if a launcher of MPI has
                 ///< started the ranks, else TCP
  tcp            ///< TCP only, also between ranks of one host
};

/// The name: "auto", "host", "mpi", "hierarchical" or "tcp".
std::string_view name(Backend backend);

/// The backend with this name.
/// Throws: InvalidArgument listing the valid names.
Backend parse_backend(std::string_view text);

/// Which parts of the training state the ranks divide among them, as the stages of ZeRO do. Each
/// rank updates one part of the elements of every bucket, and the ranks gather the updated
/// parameters.
/// Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
/// Models, 2020.
enum class Shard {
  none,       ///< every rank has all
  optimizer,  ///< the optimizer's state (ZeRO 1); .grad() after a backward is as without it
  gradients,  ///< also the averaged gradients (ZeRO 2); .grad() is undefined after a backward
};

/// Largest sizes of gradient buckets. A parameter larger than `rest` has a bucket of its own. With
/// Shard::gradients neither is above 4 MiB. Units: bytes.
struct BucketCaps {
  std::size_t first = std::size_t{1} << 20;  ///< of the bucket that backward fills first
  std::size_t rest = std::size_t{25} << 20;  ///< of each other bucket
};

}  // namespace lockstep
