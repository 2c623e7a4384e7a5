#include "comm/flight/stack_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <list>
#include <mutex>
#include <sstream>
#include <string_view>

#include "core/signal_safe_text.h"
#include "core/system/thread_stacks.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

/// Never freed: a signal handler may use it at any time.
struct StackFile::Target {
  std::string folder, path, part;
  std::atomic<pid_t> writer{0};  ///< the first thread that writes it
  std::atomic<bool> is_finished{false};
  ForkGuard process = {};

  static std::atomic<Target*> current;
  /// Of this process. Null if there is none.
  static Target* get() noexcept;
  void write(const ucontext_t* context) const noexcept;
};

std::atomic<StackFile::Target*> StackFile::Target::current{nullptr};

StackFile::Target* StackFile::Target::get() noexcept {
  auto* const target = current.load();
  return target == nullptr || target->process.in_child() ? nullptr : target;
}

StackFile::StackFile(const std::filesystem::path& folder, int rank) {
  if (!prepare_thread_stacks(write)) return;
  static std::mutex mutex;
  static auto* const all = new std::list<Target>;
  const std::lock_guard lock(mutex);
  auto& target = all->emplace_back();
  target.folder = folder.string();
  target.path = (folder / stack_file_name(rank)).string();
  target.part = concat(target.path, '.', ::getpid());
  Target* none = nullptr;
  if (Target::current.compare_exchange_strong(none, &target)) target_ = &target;
}

StackFile::~StackFile() {
  auto* own = target_;
  if (own != nullptr) Target::current.compare_exchange_strong(own, nullptr);
}

void StackFile::Target::write(const ucontext_t* context) const noexcept {
  ::mkdir(folder.c_str(), 0777);
  replace_file(path.c_str(), part.c_str(), [context](int out) {
    SignalSafeText<64> line;
    line << "process " << ::getpid() << "\n";
    write_all(out, line.c_str(), line.size());
    return write_thread_stacks(out, context);
  });
}

void StackFile::write(const ucontext_t* context) noexcept {
  auto* const target = Target::get();
  pid_t none = 0;
  if (target == nullptr || !target->writer.compare_exchange_strong(none, ::gettid())) return;
  target->write(context);
  target->is_finished.store(true);
}

void StackFile::await_other_writer() noexcept {
  const auto* const target = Target::get();
  if (target == nullptr) return;
  const auto writer = target->writer.load();
  if (writer == 0 || writer == ::gettid()) return;
  poll_until([&] { return target->is_finished.load(); }, std::chrono::milliseconds::max());
}

void request_stacks(std::string_view job, std::vector<int>& stopped) noexcept {
  try {
    for (const auto& record : read_flight_records(job)) {
      const auto& file = record->file();
      if (file.pid == ::getpid() || has_ended(file)) continue;
      if (read_process(file.pid).stopped()) {
        stopped.push_back(record->rank());
      } else if (file.failed.load() == 0) {
        const StackRequest request(file.pid);
        if (!has_ended(file)) request.send();
      }
    }
  } catch (const std::exception&) {
    // Out of memory: the other ranks write their stacks when they raise the failure.
  }
}

std::string stack_file_name(int rank) { return concat("rank-", rank, ".stacks"); }

namespace {

/// Code of a program or shared library in the memory of the process.
struct Module {
  std::uint64_t begin, end;
  std::uint64_t base;  ///< what the addresses of the file are relative to
  std::string file;
};

/// Whether the file is a program of fixed addresses.
bool has_fixed_addresses(const std::string& file) {
  Elf64_Ehdr header{};
  std::error_code absent;
  if (!std::filesystem::is_regular_file(file, absent)) return false;
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_type == ET_EXEC;
}

/// The modules of lines "7f00-7f01 r-xp 00001000 08:01 1234   /usr/lib/libc.so.6".
std::vector<Module> read_modules(std::istream& in) {
  std::vector<Module> modules;
  std::uint64_t base = 0;  // of the first byte of the last file
  for (std::string line; std::getline(in, line);) {
    std::istringstream text(line);
    Module module{};
    char dash = 0;
    std::string access, device, inode;
    std::uint64_t offset = 0;
    text >> std::hex >> module.begin >> dash >> module.end >> access >> offset >> device >> inode;
    std::getline(text >> std::ws, module.file);
    if (access.size() < 3 || !module.file.starts_with('/')) continue;
    if (offset == 0 && access[0] == 'r') base = module.begin;
    if (access[2] != 'x') continue;
    module.base = has_fixed_addresses(module.file) ? 0 : base;
    modules.push_back(std::move(module));
  }
  return modules;
}

/// Replaces addresses in memory by those in files.
void place(std::vector<ProcessStacks::Frame>& frames, const std::vector<Module>& modules) {
  for (auto& frame : frames) {
    if (&frame != &frames.front()) --frame.address;  // into the call
    const auto module = std::ranges::find_if(modules, [&](const Module& one) {
      return frame.address >= one.begin && frame.address < one.end;
    });
    if (module == modules.end()) continue;
    frame.address -= module->base;
    frame.file = module->file;
  }
}

}  // namespace

ProcessStacks ProcessStacks::read(const std::filesystem::path& path) {
  ProcessStacks stacks;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream text(line);
    std::string word;
    text >> word;
    if (word == "process") {
      text >> stacks.process;
    } else if (word == "thread") {
      constexpr std::string_view silent = ": did not answer";
      Thread thread{};
      thread.state = '?';
      text >> thread.id >> thread.state;
      std::getline(text.ignore(), thread.name);
      thread.has_answered = !thread.name.ends_with(silent);
      if (!thread.has_answered) thread.name.resize(thread.name.size() - silent.size());
      stacks.threads.push_back(std::move(thread));
    } else if (word.starts_with("0x") && !stacks.threads.empty()) {
      stacks.threads.back().frames.push_back(
          {.address = std::strtoull(word.c_str(), nullptr, 16), .file = ""});
    } else if (word == "maps") {
      const auto modules = read_modules(in);
      for (auto& thread : stacks.threads) place(thread.frames, modules);
    }
  }
  return stacks;
}

}  // namespace lockstep::detail
