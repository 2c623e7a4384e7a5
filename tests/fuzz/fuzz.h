#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
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
void require(bool condition, std::string_view text);

inline std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// A file in memory that holds the input.
class InputFile {
 public:
  explicit InputFile(std::string_view bytes);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Valid while this object lives.
  std::filesystem::path path() const;

 private:
  int fd_;
};

/// Limits what the process allocates in addition while this object lives.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t bytes);
  ~MemoryLimit();
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
