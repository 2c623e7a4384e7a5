#include "comm/host/world/arena.h"

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
#include <utility>

#include "comm/host/world/world.h"
#include "core/system/files.h"
#include "core/system/memory.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::host {

namespace {

std::size_t whole_cache_lines(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), cache_line);
}

}  // namespace

Heap::Heap(const Arena& arena, int rank, int world_rank)
    : arena_(arena),
      world_rank_(world_rank),
      free_{{arena.heap_begin(rank), arena.heap_bytes()}},
      populated_(arena.heap_begin(rank)) {}

std::uint64_t Heap::allocate(std::size_t bytes) {
  const auto range = find(bytes);
  const auto begin = range->first, end = begin + whole_cache_lines(bytes);
  if (end > populated_) {
    arena_.populate(populated_, end - populated_);
    populated_ = end;
  }
  return take(range, begin, end);
}

std::uint64_t Heap::allocate_sparse(std::size_t bytes) {
  // Behind the populated part, as far from it as possible.
  for (auto range = free_.end(); range != free_.begin();) {
    --range;
    const auto end = (range->first + range->second) / page * page;
    const auto least = std::max(range->first, round_up(populated_, page));
    if (end < least || end - least < bytes || !arena_.release_pages(end - bytes, bytes)) continue;
    return take(range, end - bytes, end);
  }
  const auto offset = allocate(bytes);
  std::memset(arena_.at(offset), 0, bytes);
  return offset;
}

Heap::Ranges::iterator Heap::find(std::size_t bytes) {
  const auto range = std::ranges::find_if(free_, [&](const auto& entry) {
    return entry.second >= bytes && entry.second >= whole_cache_lines(bytes);
  });
  if (range != free_.end()) return range;
  throw CommError(
      detail::concat("host: rank ", world_rank_, " cannot allocate ", bytes,
                     " bytes of shared memory: its heap has ", arena_.heap_bytes(),
                     " bytes, some of which are in use; it is ", arena_.header().heap_bound),
      {.rank = world_rank_});
}

std::uint64_t Heap::take(Ranges::iterator range, std::uint64_t begin, std::uint64_t end) {
  const auto [first, length] = *range;
  free_.erase(range);
  if (begin > first) free_[first] = begin - first;
  if (first + length > end) free_[end] = first + length - end;
  return begin;
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

std::size_t page_bytes(long pages) {
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(::sysconf(_SC_PAGE_SIZE));
}

/// Address space that this process uses.
std::size_t mapped_bytes() {
  std::ifstream in("/proc/self/statm");
  long pages = 0;
  return in >> pages ? page_bytes(pages) : 0;
}

/// Available memory, and the machine or control group that limits it.
struct Available {
  std::size_t bytes;
  std::string where;
};

Available available_memory() {
  Available machine{std::numeric_limits<std::size_t>::max(), "on this machine"};
  const auto memory = detail::fields("/proc/meminfo");
  if (const auto found = memory.find("MemAvailable"); found != memory.end()) {
    machine.bytes = std::stoull(found->second) * 1024;
  }
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

/// what, bound: which memory, and what limits it, for error texts.
std::byte* map(int fd, std::size_t offset, std::size_t bytes, const std::string& what,
               const std::string& bound = {}) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                      static_cast<off_t>(offset));
  if (base == MAP_FAILED) {
    throw CommError(concat("host: cannot map ", bytes / mib, " MiB of address space for ", what,
                           ": ", std::strerror(errno), bound, "; this process uses ",
                           mapped_bytes() / mib, " MiB; limits: ", limits(), "; raise ulimit -v"));
  }
  // Without this, a core dump would read all holes of the file, and the kernel would allocate them.
  ::madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

/// Whether the descriptor is that of a memory of this size, and not of a file of the program.
bool is_memory(int fd, std::size_t bytes) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_size == static_cast<off_t>(bytes);
}

}  // namespace

HeapSize heap_size(int ranks) {
  HeapSize size{page_bytes(::sysconf(_SC_PHYS_PAGES)), "limited by the machine's memory"};
  if (const auto group = MemoryGroups().limit(); group && group->bytes < size.bytes) {
    size = {group->bytes, concat("limited by the memory of control group ", group->group.string(),
                                 ": raise its limit")};
  }
  const auto parts = static_cast<std::size_t>(std::max(ranks, 1));
  // A process may have dozens of worlds in 2^47 bytes of address space.
  constexpr std::size_t least_address_space = std::size_t{1} << 40;
  const std::size_t part = std::max(least_address_space, 2 * size.bytes) / parts;
  if (part < size.bytes) {
    size = {part, "limited to a rank's part of twice the memory, or of 1 TiB: use fewer ranks"};
  }
  rlimit space{};
  ::getrlimit(RLIMIT_AS, &space);
  if (space.rlim_cur == RLIM_INFINITY) return size;
  const std::size_t free = space.rlim_cur - std::min<std::size_t>(space.rlim_cur, mapped_bytes());
  const std::size_t share = free / 2 / parts;
  if (share >= size.bytes) return size;
  return {share, concat("limited by ulimit -v, which left ", free >> 20, " MiB, half of them for ",
                        plural(ranks, "heap"), ": raise ulimit -v")};
}

std::shared_ptr<World> World::create(int size, std::size_t heap_bytes) {
  if (size < 1 || size > max_ranks) {
    throw InvalidArgument(
        concat("host: got a world of ", size, " ranks, expected 1 to ", max_ranks));
  }
  constexpr std::size_t address_space = std::size_t{1} << 46;
  const auto heap = heap_bytes == 0
                        ? heap_size(size)
                        : HeapSize{heap_bytes, "limited by heap_bytes of the program: raise it"};
  heap_bytes =
      round_up(std::min(heap.bytes, address_space / static_cast<std::size_t>(size) - page), page);
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
  std::byte* base = map(descriptor.get(), 0, fixed, "the world");
  std::shared_ptr<World> world(new World(descriptor.release(), base, fixed, bytes));
  world->populate(0, block_offset(size));
  auto& header = world->header();
  header.size = size;
  header.heap_bytes = heap_bytes;
  heap.bound.copy(header.heap_bound, sizeof header.heap_bound - 1);
  header.version = Header::expected_version;
  header.magic = Header::expected_magic;
  return world;
}

std::shared_ptr<World> World::attach(int fd, int size) {
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
  std::byte* base = map(fd, 0, fixed, "the world");
  std::shared_ptr<World> world(new World(descriptor.release(), base, fixed, bytes));
  const auto& header = world->header();
  if (header.magic != Header::expected_magic || header.version != Header::expected_version) {
    throw CommError(concat("host: descriptor ", fd, " holds a world of layout ", header.version,
                           ", expected ", Header::expected_version,
                           ": the launcher and the program are of different Lockstep versions"));
  }
  if (header.size != size || total_bytes(header.size, header.heap_bytes) != bytes) {
    throw CommError(concat("host: descriptor ", fd, " holds a world of ",
                           plural(header.size, "rank"), ", expected ", size));
  }
  return world;
}

Arena::~Arena() {
  if (auto* heaps = heaps_.load()) ::munmap(heaps, bytes_ - fixed_bytes_);
  ::munmap(base_, fixed_bytes_);
  ::close(fd_);
}

void Arena::expect_own_file() const {
  if (is_memory(fd_, bytes_)) return;
  throw CommError(concat("host: descriptor ", fd_,
                         " is no longer the world's memory: the program has closed it, expected it "
                         "open; close only descriptors that the program has opened"));
}

void Arena::map_heaps() const {
  const std::lock_guard lock(mapping_);
  if (heaps_.load() != nullptr) return;
  expect_own_file();
  std::byte* heaps = map(fd_, fixed_bytes_, bytes_ - fixed_bytes_, plural(size(), "heap"),
                         concat("; each is ", header().heap_bound));
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
  expect_own_file();
  if (bytes >= worth_checking && available_memory().bytes < bytes) refuse("not enough memory");
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, static_cast<off_t>(begin), static_cast<off_t>(length));
  } while (result != 0 && errno == EINTR);
  if (result != 0) refuse(std::strerror(errno));
  // Maps the pages into this process now. A kernel before 5.14 maps them on first use.
  ::madvise(at(begin), length, MADV_POPULATE_WRITE);
}

void Arena::populate_records(const Block& block, int member) const {
  for (const auto& part : block.records(member)) populate(offset_of(part.data()), part.size());
}

bool Arena::release_pages(std::uint64_t offset, std::size_t bytes) const {
  constexpr int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (!is_memory(fd_, bytes_)) return false;
  return ::fallocate(fd_, punch, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
}

}  // namespace lockstep::host
