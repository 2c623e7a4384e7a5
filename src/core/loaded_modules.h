#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// The program and its shared libraries in the memory of this process. Async-signal-safe. An object
/// is large, so it does not belong on a stack.
class LoadedModules {
 public:
  /// Reads /proc/self/maps.
  void read() noexcept;

  struct Place {
    std::string_view path;  ///< of the file; empty if the address is in none
    std::uint64_t address;  ///< in the file, as its symbol table counts
  };
  Place find(std::uint64_t address) const noexcept;

 private:
  static constexpr std::size_t most_modules = 1024;
  static constexpr std::size_t longest_path = 200;

  struct Module {
    std::uint64_t begin, end;  ///< of the code
    std::uint64_t base;        ///< what the addresses of the file are relative to
    std::array<char, longest_path> path;
    std::size_t length;
  };

  void add(std::string_view line) noexcept;

  std::array<Module, most_modules> modules_;
  std::size_t count_ = 0;
  /// The last mapping of the first byte of a file.
  std::uint64_t header_ = 0;
};

}  // namespace lockstep::detail
