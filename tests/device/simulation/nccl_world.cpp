#include "tests/device/simulation/nccl_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "tests/device/simulation/runtime.h"

namespace lockstep::simulation::nccl {
namespace {

/// A descriptor of a process, as others can open it.
std::string path_of(pid_t process, int descriptor) {
  return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
}

}  // namespace

std::string make_world() {
  const int file = ::memfd_create("lockstep-nccl", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, sizeof(World)) != 0) {
    throw std::runtime_error("the double of NCCL: no shared memory");
  }
  auto path = path_of(::getpid(), file);
  const auto world = open_world(path);
  world->maker = ::getpid();
  world->file = file;
  return path;
}

std::shared_ptr<World> open_world(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* at = ::mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) ::close(file);
  if (at == MAP_FAILED) throw std::runtime_error("the double of NCCL: cannot map " + path);
  return {static_cast<World*>(at), [](World* world) { ::munmap(world, sizeof(World)); }};
}

void close_descriptor(World& world) {
  if (world.maker != ::getpid()) return;
  if (const int file = world.file.exchange(-1); file >= 0) ::close(file);
}

bool has_ended(const Member& member) {
  return member.process != ::getpid() &&
         ::access(path_of(member.process, member.arena).c_str(), F_OK) != 0;
}

const std::byte* memory_of(const Member& member) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<pid_t, int>, const std::byte*>;
  if (member.process == ::getpid()) return arena_file().shadow;
  const std::lock_guard lock(mutex);
  auto& found = known[{member.process, member.arena}];
  if (found == nullptr) {
    const int file = ::open(path_of(member.process, member.arena).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return nullptr;
    void* at = ::mmap(nullptr, arena_file().bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
    ::close(file);
    if (at == MAP_FAILED) return nullptr;
    found = static_cast<const std::byte*>(at);
  }
  return found;
}

}  // namespace lockstep::simulation::nccl
