#include "core/loaded_modules.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::inline v0_2::detail {
namespace {

/// Takes the hexadecimal number at the beginning of the text.
std::uint64_t take_hex(std::string_view& text) noexcept {
  std::uint64_t number = 0;
  while (!text.empty()) {
    const char digit = text.front();
    if (digit >= '0' && digit <= '9') {
      number = number * 16 + static_cast<std::uint64_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      number = number * 16 + static_cast<std::uint64_t>(digit - 'a' + 10);
    } else {
      break;
    }
    text.remove_prefix(1);
  }
  return number;
}

/// Takes one word and the spaces behind it.
std::string_view take_word(std::string_view& text) noexcept {
  const auto word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  return word;
}

/// Whether the file that is mapped here from its first byte on is a program of fixed addresses.
bool has_fixed_addresses(std::uint64_t header) noexcept {
  Elf64_Ehdr elf;
  std::memcpy(&elf, reinterpret_cast<const void*>(header), sizeof elf);
  return std::memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0 && elf.e_type == ET_EXEC;
}

}  // namespace

void LoadedModules::read() noexcept {
  count_ = 0;
  header_ = 0;
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  std::array<char, 4096> buffer;
  std::size_t held = 0;
  for (;;) {
    const auto got = ::read(fd, buffer.data() + held, buffer.size() - held);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    held += static_cast<std::size_t>(got);
    std::string_view text(buffer.data(), held);
    for (auto end = text.find('\n'); end != text.npos; end = text.find('\n')) {
      add(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    held = text.size() == buffer.size() ? 0 : text.size();  // no line is as long
    std::memmove(buffer.data(), text.data(), held);
  }
  ::close(fd);
}

// A line: 7f00-7f01 r-xp 00001000 08:01 1234   /usr/lib/libc.so.6
void LoadedModules::add(std::string_view line) noexcept {
  const auto begin = take_hex(line);
  if (line.empty()) return;
  line.remove_prefix(1);
  const auto end = take_hex(line);
  take_word(line);  // the space
  const auto access = take_word(line);
  const auto offset = take_hex(line);
  take_word(line);
  take_word(line);  // device
  take_word(line);  // inode
  if (access.size() < 3 || line.empty() || line.front() == '[') return;
  const bool readable = access[0] == 'r';
  if (offset == 0 && readable) header_ = begin;
  if (access[2] != 'x' || count_ == most_modules) return;
  auto& module = modules_[count_++];
  module.begin = begin;
  module.end = end;
  module.base = header_ != 0 && !has_fixed_addresses(header_) ? header_ : 0;
  module.length = std::min(line.size(), longest_path);
  std::copy_n(line.data(), module.length, module.path.data());
}

LoadedModules::Place LoadedModules::find(std::uint64_t address) const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    const auto& module = modules_[i];
    if (address < module.begin || address >= module.end) continue;
    return {.path = {module.path.data(), module.length}, .address = address - module.base};
  }
  return {.path = {}, .address = address};
}

}  // namespace lockstep::detail
