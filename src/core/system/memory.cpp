#include "core/system/memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/environment.h"
#include "core/system/files.h"
#include "core/text.h"

namespace lockstep::inline v0_2 {

void keep_freed_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  ::mallopt(M_TOP_PAD, 64 << 20);
}

void use_one_arena() { ::mallopt(M_ARENA_MAX, 1); }

void populate_heap(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(block) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(block) + bytes) / page * page;
  // An older kernel returns an error; pages are then populated on first use.
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  std::free(block);
}

namespace {

using detail::first_line;
using detail::parse_number;
namespace fs = std::filesystem;

/// The limit of a version 1 group without a limit is this or more.
constexpr std::size_t unlimited = std::size_t{1} << 62;

/// The number after "key " in a file with one key per line.
std::optional<std::uint64_t> field(const fs::path& file, const std::string& key) {
  return parse_number<std::uint64_t>(detail::fields(file, ' ')[key]);
}

}  // namespace

// Where systemd and container runtimes mount the groups.
MemoryGroups::MemoryGroups(const fs::path& root) : vmstat_(root / "proc/vmstat") {
  std::ifstream in(root / "proc/self/cgroup");
  // Lines "4:memory:/job" of version 1, then "0::/job" of version 2.
  for (std::string line; std::getline(in, line);) {
    std::istringstream text(line);
    std::string number, controllers, group;
    std::getline(text, number, ':');
    std::getline(text, controllers, ':');
    const bool unified = controllers.empty();
    const auto top = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    std::error_code none;
    if (!std::getline(text, group) || !fs::is_directory(top, none)) continue;
    if (!unified && std::ranges::count(detail::lines_in(controllers, ','), "memory") == 0) continue;
    auto folder = (top / fs::path(group).relative_path()).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    // A container may see a part of the tree, or a process be outside its namespace of groups.
    const bool outside = group.find("/..") != std::string::npos;
    if (outside || !fs::is_directory(folder, none)) folder = top;
    for (; folder != top; folder = folder.parent_path()) groups_.push_back({folder, unified});
    groups_.push_back({top, unified});
  }
}

std::optional<std::size_t> MemoryGroups::Group::limit() const {
  const auto text = first_line(folder / (unified ? "memory.max" : "memory.limit_in_bytes"));
  const auto value = parse_number<std::uint64_t>(text);  // nullopt for "max"
  return value && *value < unlimited ? std::optional<std::size_t>(*value) : std::nullopt;
}

std::size_t MemoryGroups::Group::used() const {
  const auto text = first_line(folder / (unified ? "memory.current" : "memory.usage_in_bytes"));
  const auto all = parse_number<std::uint64_t>(text).value_or(0);
  const std::string prefix = unified ? "" : "total_";
  const auto stat = folder / "memory.stat";
  const auto droppable = field(stat, prefix + "inactive_file").value_or(0) +
                         field(stat, prefix + "active_file").value_or(0);
  return all - std::min(all, droppable);
}

std::optional<std::uint64_t> MemoryGroups::Group::oom_kills() const {
  return field(folder / (unified ? "memory.events" : "memory.oom_control"), "oom_kill");
}

template <class BytesOf>
std::optional<MemoryGroups::Limit> MemoryGroups::least(const BytesOf& bytes_of) const {
  std::optional<Limit> least;
  for (const auto& group : groups_) {
    const auto limit = group.limit();
    if (!limit) continue;
    const auto bytes = bytes_of(group, *limit);
    if (!least || bytes < least->bytes) least = Limit{bytes, group.folder};
  }
  return least;
}

std::optional<MemoryGroups::Limit> MemoryGroups::limit() const {
  return least([](const Group&, std::size_t limit) { return limit; });
}

std::optional<MemoryGroups::Limit> MemoryGroups::available() const {
  return least(
      [](const Group& group, std::size_t limit) { return limit - std::min(limit, group.used()); });
}

std::uint64_t MemoryGroups::oom_kills() const {
  for (const auto& group : groups_) {
    if (const auto kills = group.oom_kills()) return *kills;
  }
  return field(vmstat_, "oom_kill").value_or(0);
}

std::string MemoryGroups::oom_scope() const {
  for (const auto& group : groups_) {
    if (!group.oom_kills()) continue;
    const auto least = limit();
    return detail::concat("control group ", group.folder.string(),
                          least ? detail::concat(", limit ", least->bytes >> 20, " MiB") : "");
  }
  return "this host";
}

}  // namespace lockstep
