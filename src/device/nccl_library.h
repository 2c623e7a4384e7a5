#pragma once

#include <cstddef>
#include <string>

#include "device/nccl_api.h"

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

  nccl::Result (*get_version)(int*);
  nccl::Result (*get_unique_id)(nccl::UniqueId*);
  nccl::Result (*comm_init_rank_config)(nccl::Comm**, int size, nccl::UniqueId, int rank,
                                        nccl::Config*);
  nccl::Result (*comm_finalize)(nccl::Comm*);
  nccl::Result (*comm_destroy)(nccl::Comm*);
  nccl::Result (*comm_abort)(nccl::Comm*);
  nccl::Result (*comm_get_async_error)(nccl::Comm*, nccl::Result*);
  const char* (*get_error_string)(nccl::Result);
  const char* (*get_last_error)(nccl::Comm*);
  nccl::Result (*all_reduce)(const void*, void*, std::size_t, nccl::DataType, nccl::RedOp,
                             nccl::Comm*, nccl::Stream*);
  nccl::Result (*broadcast)(const void*, void*, std::size_t, nccl::DataType, int root, nccl::Comm*,
                            nccl::Stream*);
  nccl::Result (*all_gather)(const void*, void*, std::size_t, nccl::DataType, nccl::Comm*,
                             nccl::Stream*);
  nccl::Result (*reduce_scatter)(const void*, void*, std::size_t, nccl::DataType, nccl::RedOp,
                                 nccl::Comm*, nccl::Stream*);
  nccl::Result (*reduce)(const void*, void*, std::size_t, nccl::DataType, nccl::RedOp, int root,
                         nccl::Comm*, nccl::Stream*);
  nccl::Result (*send)(const void*, std::size_t, nccl::DataType, int peer, nccl::Comm*,
                       nccl::Stream*);
  nccl::Result (*recv)(void*, std::size_t, nccl::DataType, int peer, nccl::Comm*, nccl::Stream*);
  nccl::Result (*group_start)();
  nccl::Result (*group_end)();

 private:
  NcclLibrary();

  std::string path_;
  int version_ = 0;
};

}  // namespace lockstep::device
