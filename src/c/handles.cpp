#include "c/handles.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "comm/first_error.h"
#include "core/text.h"
#include "join/join_world.h"
#include "join/record_errors.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace lockstep::inline v0_2::c {
namespace {

using detail::concat;

// The values of lockstep_c.h are the places of these arrays.
static_assert(all_dtypes[LOCKSTEP_FLOAT32] == DType::f32 &&
              all_dtypes[LOCKSTEP_BFLOAT16] == DType::bf16 &&
              all_dtypes[LOCKSTEP_UINT8] == DType::u8 && all_dtypes[LOCKSTEP_INT64] == DType::i64);
static_assert(all_reduce_ops[LOCKSTEP_AVG] == ReduceOp::avg &&
              all_reduce_ops[LOCKSTEP_PRODUCT] == ReduceOp::product);

/// Blocks of lockstep_allocate() by their addresses.
struct Blocks {
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<std::byte>> owners;

  static Blocks& get() {
    static auto* blocks = new Blocks;  // programs may free blocks while they exit
    return *blocks;
  }
};

std::optional<std::chrono::milliseconds> timeout_of(double seconds) {
  if (seconds == 0) return std::nullopt;
  constexpr double longest = 1e9;
  if (!(seconds > 0) || seconds > longest) {
    throw InvalidArgument(concat("lockstep_init: got a timeout of ", seconds,
                                 " s, expected 0 for the default, or more"));
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace

Communicator& communicator_of(const char* function, const lockstep_group* group) {
  expect_pointer(function, "group", group);
  return *group->communicator;
}

void expect_pointer(const char* function, const char* argument, const void* pointer) {
  if (pointer == nullptr) {
    throw InvalidArgument(concat(function, ": got NULL as ", argument, ", expected a pointer"));
  }
}

DType dtype_of(const char* function, lockstep_dtype dtype) {
  if (dtype < LOCKSTEP_FLOAT32 || dtype > LOCKSTEP_BOOL) {
    throw InvalidArgument(concat(function, ": got the dtype ", dtype,
                                 ", expected LOCKSTEP_FLOAT32 (0) … LOCKSTEP_BOOL (9)"));
  }
  return all_dtypes[static_cast<std::size_t>(dtype)];
}

ReduceOp op_of(const char* function, lockstep_op op) {
  if (op < LOCKSTEP_SUM || op > LOCKSTEP_BXOR) {
    throw InvalidArgument(concat(function, ": got the operation ", op,
                                 ", expected LOCKSTEP_SUM (0) … LOCKSTEP_BXOR (7)"));
  }
  return all_reduce_ops[static_cast<std::size_t>(op)];
}

}  // namespace lockstep::c

using lockstep::c::communicator_of;
using lockstep::c::expect_pointer;
using lockstep::c::status_of;

int32_t lockstep_c_version() { return LOCKSTEP_C_VERSION; }

const char* lockstep_version() {
  static const std::string text(lockstep::version());
  return text.c_str();
}

size_t lockstep_dtype_size(lockstep_dtype dtype) {
  if (dtype < LOCKSTEP_FLOAT32 || dtype > LOCKSTEP_BOOL) return 0;
  return lockstep::size_of(lockstep::all_dtypes[static_cast<std::size_t>(dtype)]);
}

lockstep_status lockstep_init(const char* backend, double timeout_seconds, lockstep_group** world) {
  return status_of([&] {
    expect_pointer("lockstep_init", "world", static_cast<const void*>(world));
    *world = nullptr;
    lockstep::detail::JoinOptions options;
    if (backend != nullptr) options.backend = lockstep::parse_backend(backend);
    options.timeout = lockstep::c::timeout_of(timeout_seconds);
    *world = new lockstep_group{lockstep::detail::join_world(options)};
  });
}

lockstep_status lockstep_split(lockstep_group* group, int32_t color, int32_t key,
                               lockstep_group** part) {
  return status_of([&] {
    expect_pointer("lockstep_split", "part", static_cast<const void*>(part));
    *part = nullptr;
    auto& communicator = communicator_of("lockstep_split", group);
    auto made = communicator.split(color, key);
    *part = made == nullptr ? nullptr : new lockstep_group{std::move(made)};
  });
}

void lockstep_group_free(lockstep_group* group) {
  // A communicator that leaves its world reports errors to the other ranks.
  static_cast<void>(status_of([&] { delete group; }));
}

int32_t lockstep_rank(const lockstep_group* group) {
  return group == nullptr ? -1 : group->communicator->rank();
}

int32_t lockstep_size(const lockstep_group* group) {
  return group == nullptr ? -1 : group->communicator->size();
}

const char* lockstep_backend(const lockstep_group* group) {
  return group == nullptr ? "" : group->communicator->backend().data();  // of a literal
}

int32_t lockstep_host_of(const lockstep_group* group, int32_t rank) {
  if (group == nullptr) return -1;
  const auto& hosts = group->communicator->hosts();
  if (rank < 0 || static_cast<std::size_t>(rank) >= hosts.size()) return -1;
  return hosts[static_cast<std::size_t>(rank)];
}

void lockstep_fail(lockstep_group* group, const char* error) {
  static_cast<void>(status_of([&] {
    auto& communicator = communicator_of("lockstep_fail", group);
    const std::string text = error == nullptr || *error == '\0' ? "unknown error" : error;
    if (lockstep::c::world_failed()) {
      lockstep::detail::record_error_of_rank(lockstep::CommError(text, {.cause = text}));
    } else {
      lockstep::detail::record_error_of_rank(lockstep::Error(text));
      communicator.fail(text);
    }
  }));
}

lockstep_status lockstep_all_or_none(lockstep_group* group, const char* error) {
  return status_of([&] {
    auto& communicator = communicator_of("lockstep_all_or_none", group);
    if (error == nullptr) return lockstep::detail::throw_first_error(communicator, nullptr);
    const lockstep::Error own(error, {.operation = "all_or_none"});
    lockstep::detail::throw_first_error(communicator, &own);
  });
}

lockstep_status lockstep_allocate(lockstep_group* group, size_t bytes, void** memory) {
  return status_of([&] {
    expect_pointer("lockstep_allocate", "memory", static_cast<const void*>(memory));
    *memory = nullptr;
    auto& communicator = communicator_of("lockstep_allocate", group);
    auto block = communicator.allocate(bytes);
    auto& blocks = lockstep::c::Blocks::get();
    const std::lock_guard lock(blocks.mutex);
    void* const address = block.get();
    blocks.owners[address] = std::move(block);
    *memory = address;
  });
}

void lockstep_free(void* memory) {
  auto& blocks = lockstep::c::Blocks::get();
  const std::lock_guard lock(blocks.mutex);
  blocks.owners.erase(memory);
}

namespace lockstep::inline v0_2::c {
namespace {

/// Whether a function of this process returned the failure of the world.
constinit std::atomic<bool> returned_failure{false};

/// The error that a thread asks for by the lockstep_error_... functions.
struct LastError {
  std::string text;
  std::string operation;
  std::string cause;
  int rank = -1;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

lockstep_status status_of_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return LOCKSTEP_INVALID_ARGUMENT;
    case ErrorKind::communication:
      return LOCKSTEP_COMMUNICATION_ERROR;
    case ErrorKind::timeout:
      return LOCKSTEP_TIMEOUT;
    case ErrorKind::backend_unavailable:
      return LOCKSTEP_BACKEND_UNAVAILABLE;
    default:
      return LOCKSTEP_ERROR;
  }
}

}  // namespace

bool world_failed() noexcept { return returned_failure; }

lockstep_status keep_error(const std::exception& error) noexcept {
  auto& last = last_error();
  const auto* known = dynamic_cast<const Error*>(&error);
  const auto status = known == nullptr ? LOCKSTEP_ERROR : status_of_kind(known->kind());
  const bool of_world = status == LOCKSTEP_COMMUNICATION_ERROR || status == LOCKSTEP_TIMEOUT;
  if (of_world && !known->cause().empty()) returned_failure = true;
  try {
    last = known != nullptr
               ? LastError{error.what(), known->operation(), known->cause(), known->rank()}
               : LastError{error.what(), {}, {}, -1};
  } catch (const std::exception&) {
    // Out of memory: the status tells the kind.
    last.text.clear();
  }
  return status;
}

lockstep_status keep_unknown_error() noexcept {
  last_error() = {};
  return LOCKSTEP_ERROR;
}

}  // namespace lockstep::c

const char* lockstep_error_text() { return lockstep::c::last_error().text.c_str(); }
const char* lockstep_error_operation() { return lockstep::c::last_error().operation.c_str(); }
const char* lockstep_error_cause() { return lockstep::c::last_error().cause.c_str(); }
int32_t lockstep_error_rank() { return lockstep::c::last_error().rank; }
