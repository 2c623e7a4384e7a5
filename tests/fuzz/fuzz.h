#pragma once

#include <sanitizer/allocator_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// The common part of the libFuzzer harnesses. A harness feeds one parser and checks three rules:
/// - Accepted input satisfies the parser's invariants.
/// - Refused input raises the documented error type.
/// - Memory stays below a multiple of the input's size.
namespace lockstep::fuzzing {

/// Aborts with the text unless the condition holds. libFuzzer then stores the input.
inline void require(bool condition, std::string_view text) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: violated: %.*s\n", static_cast<int>(text.size()), text.data());
  std::abort();
}

inline std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// A file in memory that holds the input.
class InputFile {
 public:
  explicit InputFile(std::string_view bytes) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    const auto written = write(fd_, bytes.data(), bytes.size());
    require(written == static_cast<ssize_t>(bytes.size()), "the input fits a file in memory");
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Valid while this object lives.
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

inline constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

inline std::atomic<std::int64_t> allocated{0};  ///< since the limit was set
inline std::atomic<std::int64_t> limit{unlimited};

inline void allocate(const volatile void*, std::size_t size) {
  const std::int64_t most = limit;
  if (most == unlimited) return;
  const auto now = allocated += static_cast<std::int64_t>(size);
  if (now <= most) return;
  limit = unlimited;
  std::fprintf(stderr, "fuzz: %zu bytes more make %lld bytes, expected at most %lld\n", size,
               static_cast<long long>(now), static_cast<long long>(most));
  std::abort();
}

inline void release(const volatile void* memory) {
  if (limit == unlimited || memory == nullptr) return;
  allocated -=
      static_cast<std::int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
}

inline const int hooks_installed = __sanitizer_install_malloc_and_free_hooks(allocate, release);

/// Limits what the process allocates in addition while this object lives.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes) {
    require(hooks_installed > 0, "the sanitizer takes hooks for malloc and free");
    allocated = 0;
    limit = static_cast<std::int64_t>(bytes);
  }
  ~MemoryLimit() { limit = unlimited; }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

/// The result of fn, or nothing if fn throws Refusal. The message must contain `named`. Every other
/// exception reaches libFuzzer, which reports it.
template <class Refusal, class Function>
auto accepted(std::string_view named, const Function& fn) -> std::optional<decltype(fn())> {
  try {
    return fn();
  } catch (const Refusal& error) {
    require(std::string_view(error.what()).find(named) != std::string_view::npos,
            "the message of a refusal names what was refused");
    return std::nullopt;
  }
}

}  // namespace lockstep::fuzzing
