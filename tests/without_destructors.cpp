// ctest preloads this library into tests with LibTorch and what they start. LibTorch's static
// destructors, which deregister its operators, then do not run at exit: they take a third of the
// processor time of a program that does nothing else.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

/// Replaces libc's function, which static objects call with their destructor and the library they
/// are in.
extern "C" __attribute__((visibility("default"))) int __cxa_atexit(void (*destructor)(void*),
                                                                   void* object,
                                                                   void* library) noexcept {
  static std::atomic<void*> torch{nullptr};
  Dl_info info{};
  if (library != nullptr && torch == nullptr && ::dladdr(library, &info) != 0 &&
      std::strstr(info.dli_fname, "/libtorch_cpu.so") != nullptr)
    torch = library;
  if (library != nullptr && library == torch) return 0;
  using Function = int (*)(void (*)(void*), void*, void*);
  static std::atomic<Function> libc{nullptr};
  if (libc == nullptr) libc = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "__cxa_atexit"));
  return libc.load()(destructor, object, library);
}
