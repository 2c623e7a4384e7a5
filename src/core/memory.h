#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0_2 {

/// Makes glibc keep freed memory in this process instead of returning it to the kernel. Otherwise a
/// training step would page-fault thousands of times. Memory held grows to the largest need there
/// was.
void keep_freed_memory();

/// Makes all threads that are created later share one arena of glibc. Other arenas return every
/// block over 64 MiB to the kernel, also after keep_freed_memory().
void use_one_arena();

/// Gives the heap pages for so many bytes, which are free to be allocated afterwards; fewer when
/// the machine has not as many. Where threads share an arena their needs meet in ever new ways, and
/// the most is reached late: page by page, a fault each.
void populate_heap(std::size_t bytes);

/// The control groups that limit this process's memory: its own and all above it, of version 1 or 2
/// of the kernel's interface, wherever they are mounted.
class MemoryGroups {
 public:
  struct Limit {
    std::size_t bytes;
    std::filesystem::path group;
  };

  /// Finds them. root is what /proc and /sys are looked for in.
  explicit MemoryGroups(const std::filesystem::path& root = "/");

  /// The least limit of all groups; none where no group has one.
  std::optional<Limit> limit() const;
  /// The memory that can be taken before a group reaches its limit; none where no group has one.
  /// File pages that the kernel can drop count as free.
  std::optional<Limit> available() const;

  /// How many processes the kernel has ended so far because memory was short: in this process's
  /// group, or on this host where the group does not count them.
  std::uint64_t oom_kills() const;
  /// "control group /sys/fs/cgroup/job, limit 512 MiB", or "this host": where oom_kills() counts.
  std::string oom_scope() const;

 private:
  /// One group's folder, by the names of its interface.
  struct Group {
    std::filesystem::path folder;
    bool unified;  ///< version 2
    std::optional<std::size_t> limit() const;
    std::size_t used() const;
    std::optional<std::uint64_t> oom_kills() const;
  };

  /// The least of bytes_of(group, its limit) over the groups with a limit.
  template <class BytesOf>
  std::optional<Limit> least(const BytesOf& bytes_of) const;

  std::vector<Group> groups_;  ///< from the process's own up, version 1 before version 2
  std::filesystem::path vmstat_;
};

}  // namespace lockstep
