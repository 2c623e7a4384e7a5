#pragma once

#include <climits>
#include <cstddef>
#include <string>

/// The part of NCCL's C interface that Lockstep uses, as of NCCL 2.19. These declarations stand for
/// nccl.h, so that a build needs no NCCL. NcclLibrary finds the functions at run time.
/// Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html
namespace lockstep::inline v0_2::device::nccl {

struct Comm;    ///< ncclComm
struct Stream;  ///< CUstream_st

/// NCCL returns other values, too.
enum class Result : int { success = 0, invalid_usage = 5, in_progress = 7 };

enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  int64 = 4,
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

namespace lockstep::inline v0_2::device {

/// The functions of NCCL. The shared library is loaded at run time, from the first of these that
/// applies: the path in LOCKSTEP_NCCL; the library that the process has already loaded, as
/// libtorch_cuda does; libnccl.so.2.
class NcclLibrary {
 public:
  /// The library, loaded by the first call.
  /// Throws: BackendUnavailable if there is none, or one older than oldest_nccl_version.
  static const NcclLibrary& get();

  int version() const { return version_; }
  /// "2.29.7".
  std::string version_text() const;

 private:
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address);
    }
  };

  NcclLibrary();
  void* load() const;
  Symbol find(const char* name) const;
  int checked_version() const;

  // Members in the order of their initialisation: the library, its version, then all other
  // functions, which an older library may lack.
  std::string path_;
  void* library_ = load();

 public:
  nccl::Result (*get_version)(int*) = find("ncclGetVersion");

 private:
  int version_ = checked_version();

 public:
  nccl::Result (*get_unique_id)(nccl::UniqueId*) = find("ncclGetUniqueId");
  nccl::Result (*comm_init_rank_config)(nccl::Comm**, int size, nccl::UniqueId, int rank,
                                        nccl::Config*) = find("ncclCommInitRankConfig");
  nccl::Result (*comm_finalize)(nccl::Comm*) = find("ncclCommFinalize");
  nccl::Result (*comm_destroy)(nccl::Comm*) = find("ncclCommDestroy");
  nccl::Result (*comm_abort)(nccl::Comm*) = find("ncclCommAbort");
  nccl::Result (*comm_get_async_error)(nccl::Comm*, nccl::Result*) = find("ncclCommGetAsyncError");
  const char* (*get_error_string)(nccl::Result) = find("ncclGetErrorString");
  const char* (*get_last_error)(nccl::Comm*) = find("ncclGetLastError");
  nccl::Result (*all_reduce)(const void*, void*, std::size_t, nccl::DataType, nccl::RedOp,
                             nccl::Comm*, nccl::Stream*) = find("ncclAllReduce");
  nccl::Result (*broadcast)(const void*, void*, std::size_t, nccl::DataType, int root, nccl::Comm*,
                            nccl::Stream*) = find("ncclBroadcast");
  nccl::Result (*all_gather)(const void*, void*, std::size_t, nccl::DataType, nccl::Comm*,
                             nccl::Stream*) = find("ncclAllGather");
  nccl::Result (*reduce_scatter)(const void*, void*, std::size_t, nccl::DataType, nccl::RedOp,
                                 nccl::Comm*, nccl::Stream*) = find("ncclReduceScatter");
  nccl::Result (*reduce)(const void*, void*, std::size_t, nccl::DataType, nccl::RedOp, int root,
                         nccl::Comm*, nccl::Stream*) = find("ncclReduce");
  nccl::Result (*send)(const void*, std::size_t, nccl::DataType, int peer, nccl::Comm*,
                       nccl::Stream*) = find("ncclSend");
  nccl::Result (*recv)(void*, std::size_t, nccl::DataType, int peer, nccl::Comm*,
                       nccl::Stream*) = find("ncclRecv");
  nccl::Result (*group_start)() = find("ncclGroupStart");
  nccl::Result (*group_end)() = find("ncclGroupEnd");
};

}  // namespace lockstep::device
