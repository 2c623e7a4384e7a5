#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::inline v0_2 {

/// Element types that collectives carry. f16 is IEEE binary16, bf16 the upper half of an f32.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i8, u8, i32, i64 };

inline constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                                       DType::i8,  DType::u8,  DType::i32, DType::i64};

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
      return 2;
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

/// "float32", "bfloat16", … as LibTorch users know them.
std::string_view name(DType dtype);

/// The dtype of a name: "float32" or "f32", and so on.
/// Throws: InvalidArgument listing the valid names.
DType parse_dtype(std::string_view text);

/// avg is sum, then one multiplication by 1/N; for integers it is the sum divided by N, rounded
/// toward zero. min and max pass NaN on.
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product };

inline constexpr ReduceOp all_reduce_ops[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min,
                                              ReduceOp::max, ReduceOp::product};

std::string_view name(ReduceOp op);

/// The reduce operation of a name, "sum" and so on.
/// Throws: InvalidArgument listing the valid names.
ReduceOp parse_reduce_op(std::string_view text);

/// The operations that ranks issue together.
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
  barrier
};

std::string_view name(Collective collective);

/// The reduced precision in which float32 elements are sent in a reduction: f16 or bf16. The sum is
/// computed in float32. Ranks of one host round elements as they read them and write no copy.
/// contribution = round(clamp(x, -clip, clip) · (predivide ? 1/N : 1)); NaN stays NaN.
/// result = round((contribution of rank 0 + …) · (predivide ? 1 : 1/N)), without 1/N for a sum.
struct Wire {
  DType dtype = DType::f16;
  float clip = 0;          ///< largest magnitude; zero leaves all as they are
  bool predivide = false;  ///< for avg: divide before rounding, so that sums stay in range

  bool operator==(const Wire&) const = default;
};

/// Where the collectives of a world exchange data.
enum class Backend {
  automatic,    ///< host while all ranks are on one, else hierarchical
  host,         ///< one host's memory
  mpi,          ///< MPI alone, also between ranks of one host
  hierarchical  ///< memory inside each host, MPI between them
};

/// "auto", "host", "mpi" or "hierarchical".
std::string_view name(Backend backend);

/// The backend of a name. Throws: InvalidArgument listing the valid names.
Backend parse_backend(std::string_view text);

/// How large gradient buckets may become. Units: bytes. A parameter larger than rest has a bucket
/// of its own.
struct BucketCaps {
  std::size_t first = std::size_t{1} << 20;  ///< of the bucket that is ready first
  std::size_t rest = std::size_t{25} << 20;  ///< of each other bucket
};

}  // namespace lockstep
