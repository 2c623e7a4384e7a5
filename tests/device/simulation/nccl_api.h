#pragma once

#include <climits>
#include <cstddef>

/// The part of NCCL's C interface that the double exports, as of NCCL 2.19. NCCL's documentation
/// has the meaning of each: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html

struct ncclComm;
using ncclComm_t = ncclComm*;
/// cudaStream_t. The double takes a stream of the simulated device, or null for the default stream.
using ncclStream_t = void*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
};

constexpr int nccl_undefined = INT_MIN;
constexpr unsigned nccl_magic = 0xcafebeef;

struct ncclConfig_t {
  std::size_t size = sizeof(ncclConfig_t);
  unsigned magic = nccl_magic;
  unsigned version = 21900;
  int blocking = nccl_undefined;
  int cgaClusterSize = nccl_undefined;
  int minCTAs = nccl_undefined;
  int maxCTAs = nccl_undefined;
  const char* netName = nullptr;
  int splitShare = nccl_undefined;
};

extern "C" {
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result);
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      ncclStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
}
