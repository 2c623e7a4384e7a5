#pragma once

#include <cstddef>

/// The types of the part of NCCL's C interface that the double exports, as of NCCL 2.19. NCCL's
/// documentation has the meaning of each:
/// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html

struct ncclComm;
using ncclComm_t = ncclComm*;
/// cudaStream_t. The double takes a stream of the simulated device, or null for the default stream.
using ncclStream_t = void*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclDataType_t : int {};  // nccl_compute.cpp has the values

enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
};

constexpr unsigned nccl_magic = 0xcafebeef;

struct ncclConfig_t {
  std::size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare;
};
