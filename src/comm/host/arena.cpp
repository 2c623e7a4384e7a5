#include "comm/host/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "comm/host/world.h"
#include "core/memory.h"
#include "core/plural.h"
#include "core/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {

namespace {

std::size_t whole_cache_lines(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), cache_line);
}

}  // namespace

Heap::Heap(const Arena& arena, int rank, int world_rank)
    : arena_(arena), world_rank_(world_rank), populated_(arena.heap_begin(rank)) {
  free_[populated_] = arena.heap_bytes();
}

std::uint64_t Heap::allocate(std::size_t bytes) {
  const auto refuse = [&] {
    throw CommError(detail::concat("host: rank ", world_rank_, " cannot allocate ", bytes,
                                   " bytes of shared memory: its heap has ", arena_.heap_bytes(),
                                   " bytes, some of which are in use"),
                    {.rank = world_rank_});
  };
  if (bytes > arena_.heap_bytes()) refuse();
  const std::size_t wanted = whole_cache_lines(bytes);
  const auto hole = std::find_if(free_.begin(), free_.end(),
                                 [&](const auto& entry) { return entry.second >= wanted; });
  if (hole == free_.end()) refuse();
  const auto [offset, length] = *hole;
  if (offset + wanted > populated_) {
    arena_.populate(populated_, offset + wanted - populated_);
    populated_ = offset + wanted;
  }
  free_.erase(hole);
  if (length > wanted) free_[offset + wanted] = length - wanted;
  return offset;
}

void Heap::release(std::uint64_t offset, std::size_t bytes) {
  auto hole = free_.emplace(offset, whole_cache_lines(bytes)).first;
  if (const auto next = std::next(hole);
      next != free_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole != free_.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      free_.erase(hole);
    }
  }
}

namespace {

using detail::concat;
using detail::plural;

constexpr double mib = 1024.0 * 1024.0;

std::size_t states_offset() { return round_up(sizeof(Header), page); }

std::size_t block_offset(int size) {
  return round_up(states_offset() + static_cast<std::size_t>(size) * sizeof(RankState), page);
}

std::size_t heaps_offset(int size) {
  return round_up(block_offset(size) + Block::bytes(size), page);
}

/// Heaps begin at different offsets within a page, so that equal offsets in two heaps do not map to
/// the same cache set.
std::size_t heap_stride(std::size_t heap_bytes) { return heap_bytes + page + 17 * cache_line; }

std::size_t total_bytes(int size, std::size_t heap_bytes) {
  return round_up(heaps_offset(size) + static_cast<std::size_t>(size) * heap_stride(heap_bytes),
                  page);
}

std::size_t machine_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGE_SIZE));
}

/// The value of "key:" in /proc/meminfo, in bytes.
std::size_t first_number(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto digits = line.find_first_of("0123456789");
    if (digits == std::string::npos) break;
    return std::stoull(line.substr(digits)) * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

/// Available memory, and the machine or control group that limits it.
struct Available {
  std::size_t bytes;
  std::string where;
};

Available available_memory() {
  const Available machine{first_number("/proc/meminfo", "MemAvailable"), "on this machine"};
  const auto group = MemoryGroups().available();
  if (!group || group->bytes > machine.bytes) return machine;
  return {group->bytes, concat("on this machine within control group ", group->group.string())};
}

std::string limits() {
  const auto text = [](int resource) {
    rlimit limit{};
    ::getrlimit(resource, &limit);
    return limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited")
                                           : concat(limit.rlim_cur, " bytes");
  };
  return concat("address space (ulimit -v) ", text(RLIMIT_AS), ", file size (ulimit -f) ",
                text(RLIMIT_FSIZE));
}

std::byte* map(int fd, std::size_t offset, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                      static_cast<off_t>(offset));
  if (base == MAP_FAILED) {
    throw CommError(concat("host: cannot map ", bytes / mib,
                           " MiB of address space for the world: ", std::strerror(errno),
                           "; limits: ", limits()));
  }
  // Without this, a core dump would read all holes of the file, and the kernel would allocate them.
  ::madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

}  // namespace

std::unique_ptr<Arena> Arena::create(int size, std::size_t heap_bytes) {
  if (size < 1 || size > max_ranks) {
    throw InvalidArgument(
        concat("host: got a world of ", size, " ranks, expected 1 to ", max_ranks));
  }
  constexpr std::size_t address_space = std::size_t{1} << 46;
  if (heap_bytes == 0) heap_bytes = machine_bytes();
  heap_bytes =
      round_up(std::min(heap_bytes, address_space / static_cast<std::size_t>(size) - page), page);
  const std::size_t bytes = total_bytes(size, heap_bytes);

  detail::Descriptor descriptor(::memfd_create("lockstep-world", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) {
    throw CommError(concat("host: cannot create the world's memory: ", std::strerror(errno)));
  }
  rlimit file_size{};
  ::getrlimit(RLIMIT_FSIZE, &file_size);
  // Beyond this limit the kernel would send SIGXFSZ instead of returning an error.
  const bool refused = file_size.rlim_cur != RLIM_INFINITY && file_size.rlim_cur < bytes;
  if (refused || ::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    throw CommError(concat("host: cannot size the world's memory to ", bytes / mib, " MiB: ",
                           std::strerror(refused ? EFBIG : errno), "; limits: ", limits()));
  }
  // A process that holds the descriptor could otherwise end all ranks by SIGBUS.
  if (::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw CommError(concat("host: cannot seal the world's memory: ", std::strerror(errno)));
  }
  const auto fixed = heaps_offset(size);
  std::byte* base = map(descriptor.get(), 0, fixed);
  std::unique_ptr<Arena> arena(new Arena(descriptor.release(), base, fixed, bytes));
  arena->populate(0, block_offset(size));
  auto& header = arena->header();
  header.size = size;
  header.heap_bytes = heap_bytes;
  header.version = Header::expected_version;
  header.magic = Header::expected_magic;
  return arena;
}

std::unique_ptr<Arena> Arena::attach(int fd, int size) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw CommError(concat("host: descriptor ", fd, " is not a world's memory: ",
                           std::strerror(errno), "; was it closed before init()?"));
  }
  detail::Descriptor descriptor(fd);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes < block_offset(1)) {
    throw CommError(concat("host: descriptor ", fd, " holds ", bytes, " bytes, not a world"));
  }
  // The descriptor may be that of a world of another size.
  const auto fixed =
      std::min(size > 0 && size <= max_ranks ? heaps_offset(size) : page, bytes / page * page);
  std::byte* base = map(fd, 0, fixed);
  std::unique_ptr<Arena> arena(new Arena(descriptor.release(), base, fixed, bytes));
  const auto& header = arena->header();
  if (header.magic != Header::expected_magic || header.version != Header::expected_version) {
    throw CommError(concat("host: descriptor ", fd, " holds a world of layout ", header.version,
                           ", expected ", Header::expected_version,
                           ": the launcher and the program are of different Lockstep versions"));
  }
  if (header.size != size || total_bytes(header.size, header.heap_bytes) != bytes) {
    throw CommError(concat("host: descriptor ", fd, " holds a world of ",
                           plural(header.size, "rank"), ", expected ", size));
  }
  return arena;
}

Arena::~Arena() {
  if (auto* heaps = heaps_.load()) ::munmap(heaps, bytes_ - fixed_bytes_);
  ::munmap(base_, fixed_bytes_);
  ::close(fd_);
}

void Arena::map_heaps() const {
  const std::lock_guard lock(mapping_);
  if (heaps_.load() != nullptr) return;
  std::byte* heaps = map(fd_, fixed_bytes_, bytes_ - fixed_bytes_);
  // Where the kernel's shmem_enabled is `advise`. Elsewhere this changes nothing.
  ::madvise(heaps, bytes_ - fixed_bytes_, MADV_HUGEPAGE);
  heaps_.store(heaps, std::memory_order_release);
}

RankState& Arena::rank(int rank) const {
  return *reinterpret_cast<RankState*>(base_ + states_offset() +
                                       static_cast<std::size_t>(rank) * sizeof(RankState));
}

Block Arena::world_block() const { return Block(base_ + block_offset(size()), size()); }

std::uint64_t Arena::heap_begin(int rank) const {
  return heaps_offset(size()) + static_cast<std::size_t>(rank) * heap_stride(heap_bytes());
}

std::uint64_t Arena::offset_of(const std::byte* memory) const {
  const auto distance = [&](const std::byte* begin) {
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(memory) -
                                      reinterpret_cast<std::uintptr_t>(begin));
  };
  if (const auto offset = distance(base_); offset < fixed_bytes_) return offset;
  const auto* heaps = heaps_.load(std::memory_order_acquire);
  if (heaps == nullptr) return no_offset;
  const auto offset = distance(heaps);
  return offset < bytes_ - fixed_bytes_ ? fixed_bytes_ + offset : no_offset;
}

void Arena::populate(std::uint64_t offset, std::size_t bytes) const {
  constexpr std::size_t worth_checking = 16 << 20;
  const std::uint64_t begin = offset / page * page;
  const std::size_t length = round_up(offset + bytes, page) - begin;
  const auto refuse = [&](const char* why) {
    const auto available = available_memory();
    throw CommError(concat("host: cannot allocate ", bytes / mib, " MiB of memory: ", why, "; ",
                           available.bytes / mib, " MiB are available ", available.where));
  };
  if (bytes >= worth_checking && available_memory().bytes < bytes) refuse("not enough memory");
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, static_cast<off_t>(begin), static_cast<off_t>(length));
  } while (result != 0 && errno == EINTR);
  if (result != 0) refuse(std::strerror(errno));
#ifdef MADV_POPULATE_WRITE
  // Maps the pages into this process now. An older kernel maps them on first use.
  ::madvise(at(begin), length, MADV_POPULATE_WRITE);
#endif
}

}  // namespace lockstep::host
