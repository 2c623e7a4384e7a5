#pragma once

#include <climits>
#include <cstddef>

/// The part of NCCL's C interface that Lockstep uses, as of NCCL 2.19. These declarations stand for
/// nccl.h, so that a build needs no NCCL. The functions are found at run time: nccl_library.h.
/// Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html
namespace lockstep::inline v0_2::device::nccl {

struct Comm;    ///< ncclComm
struct Stream;  ///< CUstream_st

enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};

enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9
};

enum class RedOp : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

struct UniqueId {
  char bytes[128];
};

/// ncclConfig_t of version 2.19. NCCL reads `size` bytes of it.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21900;
  int blocking = INT_MIN;  ///< INT_MIN: undefined, here and below
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

}  // namespace lockstep::device::nccl
