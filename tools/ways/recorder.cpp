// Records which functions a process calls, for tools/measure-size --ways. It is preloaded: its
// hooks replace the empty ones of the C library. LOCKSTEP_WAYS names a folder, in which each
// process has a file.
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr std::size_t slots = 1 << 16;

/// The file of a process. It is complete also after SIGKILL.
struct Record {
  char program[4096];
  std::atomic<std::uint64_t>
      functions[slots];  // addresses, less the address of the program; 0: empty
};

Record* record = nullptr;
std::uintptr_t base = 0;
std::uint64_t within = 0;  // the function in which the record takes place; 0: anywhere
std::atomic<bool> inside = true;
std::atomic<bool> here = false;
std::atomic<bool> shared_default = false;
std::atomic<bool>* everywhere = &shared_default;

void* map(const std::string& path, std::size_t size) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) abort();
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) abort();
  close(file);
  return memory;
}

__attribute__((constructor)) void begin() {
  const char* const folder = getenv("LOCKSTEP_WAYS");
  if (folder == nullptr) return;
  dl_iterate_phdr(
      [](dl_phdr_info* program, std::size_t, void*) {
        base = program->dlpi_addr;
        return 1;  // the program is the first
      },
      nullptr);
  everywhere = static_cast<std::atomic<bool>*>(map(std::string(folder) + "/everywhere", 4096));
  auto* const made = static_cast<Record*>(
      map(std::string(folder) + "/" + std::to_string(getpid()) + ".record", sizeof(Record)));
  if (readlink("/proc/self/exe", made->program, sizeof made->program - 1) < 0) abort();
  const char* const from_start = getenv("LOCKSTEP_WAYS_FROM_START");
  here = from_start != nullptr && strcmp(program_invocation_short_name, from_start) == 0;
  // LOCKSTEP_WAYS_WITHIN=PROGRAM:ADDRESS
  const std::string limit = getenv("LOCKSTEP_WAYS_WITHIN") ? getenv("LOCKSTEP_WAYS_WITHIN") : "";
  const auto colon = limit.find(':');
  if (colon != std::string::npos && limit.substr(0, colon) == program_invocation_short_name) {
    within = std::stoull(limit.substr(colon + 1), nullptr, 16);
    inside = false;
  }
  record = made;
}

}  // namespace

extern "C" {

/// Begins or ends the record of this process.
void lockstep_ways_here(bool on) { here = on; }

/// Begins the records of all processes.
void lockstep_ways_everywhere() { *everywhere = true; }

void __cyg_profile_func_enter(void* function, void*) {
  if (record == nullptr) return;
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(function) - base;
  if (address == within) inside = true;
  if (!inside.load(std::memory_order_relaxed)) return;
  if (!here.load(std::memory_order_relaxed) && !everywhere->load()) return;
  for (std::size_t i = address * 0x9e3779b97f4a7c15U >> 48U; i < 2 * slots; ++i) {
    auto& slot = record->functions[i % slots];
    std::uint64_t found = slot.load(std::memory_order_relaxed);
    if (found == 0 && slot.compare_exchange_strong(found, address)) return;
    if (found == address) return;
  }
}

void __cyg_profile_func_exit(void* function, void*) {
  if (within != 0 && reinterpret_cast<std::uintptr_t>(function) - base == within) inside = false;
}
}
