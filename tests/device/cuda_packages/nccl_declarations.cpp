// Compares device/nccl_library.h with the nccl.h of NCCL, at compile time.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "device/nccl_library.h"

namespace lockstep::device {
namespace {

// --- Types ---------------------------------------------------------------------------------------

/// The declaration of nccl.h for one of nccl_library.h.
template <class T>
struct Real : std::type_identity<T> {};
template <>
struct Real<nccl::Result> : std::type_identity<ncclResult_t> {};
template <>
struct Real<nccl::DataType> : std::type_identity<ncclDataType_t> {};
template <>
struct Real<nccl::RedOp> : std::type_identity<ncclRedOp_t> {};
template <>
struct Real<nccl::UniqueId> : std::type_identity<ncclUniqueId> {};
template <>
struct Real<nccl::Config> : std::type_identity<ncclConfig_t> {};
template <>
struct Real<nccl::Comm> : std::remove_pointer<ncclComm_t> {};
template <>
struct Real<nccl::Stream> : std::remove_pointer<cudaStream_t> {};
template <class T>
struct Real<T*> : std::type_identity<typename Real<T>::type*> {};
template <class R, class... A>
struct Real<R (*)(A...)> {
  using type = typename Real<R>::type (*)(typename Real<A>::type...);
};

template <class T>
constexpr bool has_equal_layout = sizeof(T) == sizeof(typename Real<T>::type) &&
                                  alignof(T) == alignof(typename Real<T>::type);

// C's enums have the size of int, and are passed as int is.
static_assert(has_equal_layout<nccl::Result> && sizeof(nccl::Result) == sizeof(int));
static_assert(has_equal_layout<nccl::DataType> && sizeof(nccl::DataType) == sizeof(int));
static_assert(has_equal_layout<nccl::RedOp> && sizeof(nccl::RedOp) == sizeof(int));
// A parameter by value.
static_assert(has_equal_layout<nccl::UniqueId> && std::is_trivially_copyable_v<nccl::UniqueId>);
static_assert(sizeof(nccl::UniqueId) == NCCL_UNIQUE_ID_BYTES);

// --- Values --------------------------------------------------------------------------------------

template <class Own>
constexpr bool is_value(Own own, typename Real<Own>::type real) {
  return static_cast<int>(own) == static_cast<int>(real);
}

static_assert(is_value(nccl::Result::success, ncclSuccess));
static_assert(is_value(nccl::Result::invalid_usage, ncclInvalidUsage));
static_assert(is_value(nccl::Result::in_progress, ncclInProgress));

static_assert(is_value(nccl::DataType::int8, ncclInt8));
static_assert(is_value(nccl::DataType::uint8, ncclUint8));
static_assert(is_value(nccl::DataType::int32, ncclInt32));
static_assert(is_value(nccl::DataType::int64, ncclInt64));
static_assert(is_value(nccl::DataType::float16, ncclFloat16));
static_assert(is_value(nccl::DataType::float32, ncclFloat32));
static_assert(is_value(nccl::DataType::float64, ncclFloat64));
static_assert(is_value(nccl::DataType::bfloat16, ncclBfloat16));

static_assert(is_value(nccl::RedOp::sum, ncclSum));
static_assert(is_value(nccl::RedOp::prod, ncclProd));
static_assert(is_value(nccl::RedOp::max, ncclMax));
static_assert(is_value(nccl::RedOp::min, ncclMin));
static_assert(is_value(nccl::RedOp::avg, ncclAvg));

// --- ncclConfig_t --------------------------------------------------------------------------------

// NCCL takes the members that a caller's size does not cover for unset ones, so a newer structure
// may be longer. What both have must lie at the same places.
#define LOCKSTEP_SAME_PLACE(own, real)                                         \
  static_assert(offsetof(nccl::Config, own) == offsetof(ncclConfig_t, real) && \
                std::is_same_v<decltype(nccl::Config::own), decltype(ncclConfig_t::real)>)
LOCKSTEP_SAME_PLACE(size, size);
LOCKSTEP_SAME_PLACE(magic, magic);
LOCKSTEP_SAME_PLACE(version, version);
LOCKSTEP_SAME_PLACE(blocking, blocking);
LOCKSTEP_SAME_PLACE(cga_cluster_size, cgaClusterSize);
LOCKSTEP_SAME_PLACE(min_ctas, minCTAs);
LOCKSTEP_SAME_PLACE(max_ctas, maxCTAs);
LOCKSTEP_SAME_PLACE(net_name, netName);
LOCKSTEP_SAME_PLACE(split_share, splitShare);
#undef LOCKSTEP_SAME_PLACE
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));

constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
constexpr nccl::Config own;
static_assert(own.magic == initial.magic && own.blocking == initial.blocking);
static_assert(own.cga_cluster_size == initial.cgaClusterSize);
static_assert(own.min_ctas == initial.minCTAs && own.max_ctas == initial.maxCTAs);
static_assert(own.net_name == initial.netName && own.split_share == initial.splitShare);
static_assert(own.version == NCCL_VERSION(2, 19, 0) && own.size == sizeof(nccl::Config));
static_assert(own.version <= initial.version);

// --- Functions -----------------------------------------------------------------------------------

/// Whether a pointer of NcclLibrary has the type of nccl.h's function, with each type of
/// nccl_library.h in place of nccl.h's.
#define LOCKSTEP_SAME_FUNCTION(member, function) \
  static_assert(std::is_same_v<Real<decltype(NcclLibrary::member)>::type, decltype(&function)>)
LOCKSTEP_SAME_FUNCTION(get_version, ncclGetVersion);
LOCKSTEP_SAME_FUNCTION(get_unique_id, ncclGetUniqueId);
LOCKSTEP_SAME_FUNCTION(comm_init_rank_config, ncclCommInitRankConfig);
LOCKSTEP_SAME_FUNCTION(comm_finalize, ncclCommFinalize);
LOCKSTEP_SAME_FUNCTION(comm_destroy, ncclCommDestroy);
LOCKSTEP_SAME_FUNCTION(comm_abort, ncclCommAbort);
LOCKSTEP_SAME_FUNCTION(comm_get_async_error, ncclCommGetAsyncError);
LOCKSTEP_SAME_FUNCTION(get_error_string, ncclGetErrorString);
LOCKSTEP_SAME_FUNCTION(get_last_error, ncclGetLastError);
LOCKSTEP_SAME_FUNCTION(all_reduce, ncclAllReduce);
LOCKSTEP_SAME_FUNCTION(broadcast, ncclBroadcast);
LOCKSTEP_SAME_FUNCTION(all_gather, ncclAllGather);
LOCKSTEP_SAME_FUNCTION(reduce_scatter, ncclReduceScatter);
LOCKSTEP_SAME_FUNCTION(reduce, ncclReduce);
LOCKSTEP_SAME_FUNCTION(send, ncclSend);
LOCKSTEP_SAME_FUNCTION(recv, ncclRecv);
LOCKSTEP_SAME_FUNCTION(group_start, ncclGroupStart);
LOCKSTEP_SAME_FUNCTION(group_end, ncclGroupEnd);
#undef LOCKSTEP_SAME_FUNCTION

}  // namespace
}  // namespace lockstep::device

/// The version of nccl.h, for main.cpp.
int nccl_header_version() { return NCCL_VERSION_CODE; }
