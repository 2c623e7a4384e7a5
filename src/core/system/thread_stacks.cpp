#include "core/system/thread_stacks.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "core/signal_safe_text.h"

// Note [How threads write their stacks]
// One thread sends a real-time signal to every other thread of its process. The handler unwinds
// into a slot of static memory. The sender writes the slots. A thread that does not answer in time
// (in the kernel, or with the signal blocked) is listed without a stack, and a late answer is
// dropped: the slot's ticket has changed. Nothing allocates memory or takes a lock, so a crash
// handler can do it.
//
// Note [What a file of stacks holds]
// For each thread a line "thread TID STATE NAME", or "thread TID STATE NAME: did not answer", and a
// line for each frame, innermost first: its address in memory, which of all frames but the first is
// that behind the call. Then a line "maps" and the content of /proc/self/maps, by which the reader
// finds the files.

namespace lockstep::inline v0_2::detail {
namespace {

constexpr std::size_t most_threads = 256;
constexpr int most_frames = 64;
/// Frames of the handler, before those of the interrupted function.
constexpr int most_own_frames = 8;
/// The value that another process sends with the signal.
constexpr int request_value = 0x1057ac;

constexpr pid_t no_thread = 0;

enum class Answer : std::uint32_t { none, asked, writing, complete };

struct ThreadSlot {
  std::atomic<Answer> answer;
  std::atomic<int> ticket;
  pid_t thread;
  int depth;
  std::array<void*, most_frames + most_own_frames> frames;
};

/// Static, so that nothing is allocated after a crash. Written by the thread that holds `busy`.
struct Capture {
  std::atomic_flag busy;
  int ticket = 0;
  std::array<ThreadSlot, most_threads> slots;
  std::atomic<void (*)(const ucontext_t*)> on_request;
};
Capture capture;

/// The parts of the value of a signal to a thread.
constexpr int ticket_of(int value) { return value / static_cast<int>(most_threads); }
constexpr int slot_of(int value) { return value % static_cast<int>(most_threads); }

const void* program_counter(const ucontext_t* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(context->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(context->uc_mcontext.pc);
#else
  return static_cast<void>(context), nullptr;
#endif
}

/// Unwinds the calling thread into the slot, from the function with this program counter on.
void unwind(ThreadSlot& slot, const void* counter) noexcept {
  slot.depth = ::backtrace(slot.frames.data(), static_cast<int>(slot.frames.size()));
  const auto end = slot.frames.begin() + slot.depth;
  const auto first = std::find(slot.frames.begin(), end, counter);
  if (first == end) return;
  slot.depth = static_cast<int>(std::copy(first, end, slot.frames.begin()) - slot.frames.begin());
}

void answer_with_stack(int value, const ucontext_t* context) noexcept {
  auto& slot = capture.slots[static_cast<std::size_t>(slot_of(value))];
  if (slot.ticket.load() != ticket_of(value)) return;
  auto asked = Answer::asked;
  if (!slot.answer.compare_exchange_strong(asked, Answer::writing)) return;
  unwind(slot, program_counter(context));
  slot.answer.store(Answer::complete);
}

void on_stack_signal(int /*signal*/, siginfo_t* info, void* context) {
  const int error = errno;
  if (info->si_code == SI_QUEUE && info->si_pid == ::getpid()) {
    answer_with_stack(info->si_value.sival_int, static_cast<const ucontext_t*>(context));
  } else if (info->si_code == SI_QUEUE && info->si_value.sival_int == request_value) {
    if (auto* const on_request = capture.on_request.load()) {
      on_request(static_cast<const ucontext_t*>(context));
    }
  }
  errno = error;
}

/// The siginfo of a stack_signal() from this process.
siginfo_t info_with(int value) noexcept {
  siginfo_t info;
  std::memset(&info, 0, sizeof info);
  info.si_signo = stack_signal();
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = value;
  return info;
}

void send(pid_t thread, int value) noexcept {
  auto info = info_with(value);
  ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread, stack_signal(), &info);
}

/// Calls fn with the id of each thread of this process. Async-signal-safe, as opendir() is not.
template <class Fn>
void for_each_thread(const Fn& fn) noexcept {
  const int folder = ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(dirent64) std::array<char, 4096> buffer;
  for (;;) {
    const auto got = ::syscall(SYS_getdents64, folder, buffer.data(), buffer.size());
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer.data() + at);
      const char* name = entry->d_name;
      pid_t thread = 0;
      const auto* end = name + std::strlen(name);
      if (std::from_chars(name, end, thread).ptr == end) fn(thread);
      at += entry->d_reclen;
    }
  }
  ::close(folder);
}

using Line = SignalSafeText<128>;

/// Adds the state and the name of a thread, such as "S train".
void add_state(Line& line, pid_t thread) noexcept {
  SignalSafeText<64> path;
  path << "/proc/self/task/" << thread << "/stat";
  std::array<char, 128> text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto got = fd < 0 ? -1 : ::read(fd, text.data(), text.size());
  if (fd >= 0) ::close(fd);
  const std::string_view all(text.data(), got < 0 ? 0 : static_cast<std::size_t>(got));
  const auto begin = all.find('(');
  const auto end = all.rfind(')');
  if (begin == all.npos || end == all.npos || end + 2 >= all.size()) {
    line << "? ?";
    return;
  }
  line << all.substr(end + 2, 1) << " " << all.substr(begin + 1, end - begin - 1);
}

bool write_stack(int fd, const ThreadSlot& slot, bool has_answered) noexcept {
  Line line;
  line << "thread " << slot.thread << " ";
  add_state(line, slot.thread);
  line << (has_answered ? "\n" : ": did not answer\n");
  bool written = write_all(fd, line.c_str(), line.size());
  for (int i = 0; has_answered && i < std::min(slot.depth, most_frames); ++i) {
    line.clear();
    line.hex(reinterpret_cast<std::uint64_t>(slot.frames[static_cast<std::size_t>(i)]));
    line << "\n";
    written = write_all(fd, line.c_str(), line.size()) && written;
  }
  return written;
}

bool write_maps(int fd) noexcept {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return true;  // addresses without files
  constexpr std::string_view title = "maps\n";
  bool written = write_all(fd, title.data(), title.size());
  std::array<char, 4096> buffer;
  for (;;) {
    const auto got = ::read(maps, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    written = written && write_all(fd, buffer.data(), static_cast<std::size_t>(got));
  }
  ::close(maps);
  return written;
}

void wait_for_answers(std::size_t count) noexcept {
  const auto has_answered = [](const ThreadSlot& slot) {
    return slot.thread == no_thread || slot.answer.load() == Answer::complete;
  };
  const auto asked = std::span(capture.slots).first(count);
  poll_until([&] { return std::ranges::all_of(asked, has_answered); }, stack_timeout);
}

/// Whether the process has a handler of the signal. An exec() removes handlers.
bool catches(pid_t process, int signal) {
  const auto mask = std::strtoull(process_status(process, "SigCgt").c_str(), nullptr, 16);
  return (mask >> (signal - 1) & 1) != 0;
}

}  // namespace

bool prepare_thread_stacks(void (*on_request)(const ucontext_t*)) {
  struct sigaction now {};
  if (::sigaction(stack_signal(), nullptr, &now) != 0) return false;
  const bool is_own = (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_stack_signal;
  if (!is_own && now.sa_handler != SIG_DFL) return false;
  // The first call loads the unwinder, which allocates memory.
  std::array<void*, 1> frame;
  ::backtrace(frame.data(), 1);
  capture.on_request.store(on_request);
  struct sigaction action {};
  action.sa_sigaction = on_stack_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  return is_own || ::sigaction(stack_signal(), &action, nullptr) == 0;
}

bool write_thread_stacks(int fd, const ucontext_t* context) noexcept {
  if (capture.busy.test_and_set()) return false;
  const void* const counter =
      context != nullptr ? program_counter(context) : __builtin_return_address(0);
  capture.ticket = (capture.ticket + 1) % 1'000'000;
  std::size_t count = 0;
  for_each_thread([&](pid_t thread) {
    // A thread may still write the answer to an earlier question, which was given up.
    while (count < most_threads && capture.slots[count].answer.load() == Answer::writing) {
      capture.slots[count++].thread = no_thread;
    }
    if (count == most_threads) return;
    auto& slot = capture.slots[count];
    slot.thread = thread;
    slot.depth = 0;
    slot.ticket.store(capture.ticket);
    if (thread == ::gettid()) {
      unwind(slot, counter);
      slot.answer.store(Answer::complete);
    } else {
      slot.answer.store(Answer::asked);
      send(thread, capture.ticket * static_cast<int>(most_threads) + static_cast<int>(count));
    }
    ++count;
  });
  wait_for_answers(count);
  bool written = true;
  for (std::size_t i = 0; i < count; ++i) {
    auto& slot = capture.slots[i];
    if (slot.thread == no_thread) continue;
    auto asked = Answer::asked;
    slot.answer.compare_exchange_strong(asked, Answer::none);
    written = write_stack(fd, slot, slot.answer.load() == Answer::complete) && written;
  }
  written = written && write_maps(fd);
  capture.busy.clear();
  return written;
}

StackRequest::StackRequest(pid_t process)
    : process_(process), fd_(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))) {}

void StackRequest::send() const {
  if (!fd_ || !catches(process_, stack_signal())) return;
  auto info = info_with(request_value);
  ::syscall(SYS_pidfd_send_signal, fd_.get(), stack_signal(), &info, 0);
}

}  // namespace lockstep::detail
