#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0_2 {

/// Makes glibc keep freed memory in this process instead of returning it to the kernel. Without
/// this, a training step has thousands of page faults. The process keeps the largest amount of
/// memory that it has used.
void keep_freed_memory();

/// Makes all threads that are created later share glibc's main arena. Other arenas return blocks of
/// more than 64 MiB to the kernel, also after keep_freed_memory().
void use_one_arena();

/// Populates pages for `bytes` of heap memory, which are free for allocation afterwards; fewer if
/// memory is short. If threads share an arena, their peak demand grows slowly over many steps.
/// Without this call, every new page would be a page fault.
void populate_heap(std::size_t bytes);

/// The control groups that limit this process's memory: its own and all ancestors, with cgroup
/// version 1 or 2.
class MemoryGroups {
 public:
  struct Limit {
    std::size_t bytes;
    std::filesystem::path group;
  };

  /// root is the folder that contains /proc and /sys, for tests.
  explicit MemoryGroups(const std::filesystem::path& root = "/");

  /// The lowest limit of all groups; nullopt if no group has one.
  std::optional<Limit> limit() const;
  /// The memory that can be allocated before a group reaches its limit; nullopt if no group has
  /// one. File pages that the kernel can drop count as free.
  std::optional<Limit> available() const;

  /// The number of processes that the kernel has killed because memory was short: in this process's
  /// group, or on this host if the group does not count them.
  std::uint64_t oom_kills() const;
  /// The scope of oom_kills(): "control group /sys/fs/cgroup/job, limit 512 MiB", or "this host".
  std::string oom_scope() const;

 private:
  /// One group's folder, and its version of the interface.
  struct Group {
    std::filesystem::path folder;
    bool unified;  ///< version 2
    std::optional<std::size_t> limit() const;
    std::size_t used() const;
    std::optional<std::uint64_t> oom_kills() const;
  };

  /// The minimum of bytes_of(group, limit) over the groups with a limit.
  template <class BytesOf>
  std::optional<Limit> least(const BytesOf& bytes_of) const;

  std::vector<Group>
      groups_;  ///< the process's own group, then its ancestors; version 1 before version 2
  std::filesystem::path vmstat_;
};

}  // namespace lockstep
