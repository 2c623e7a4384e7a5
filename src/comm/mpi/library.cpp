#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/mpi/mpi.h"
#include "comm/mpi/mpi_transport.h"
#include "core/deadline.h"
#include "core/environment.h"
#include "core/log.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::mpi {
namespace {

using detail::concat;

std::atomic<bool> abandoned{false};
/// Whether Lockstep has initialised MPI. No other code calls it then.
bool initialized_here = false;
/// The process that joined MPI. A forked child shares its connections and must not use them.
const detail::ForkGuard& process() {
  static const detail::ForkGuard joined;
  return joined;
}

std::function<void()>& last_call() {
  static std::function<void()> call;
  return call;
}

bool answer(int (*question)(int*)) {
  int flag = 0;
  question(&flag);
  return flag != 0;
}
bool initialized() { return answer(MPI_Initialized); }
bool finalized() { return answer(MPI_Finalized); }

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level;
}

const char* level_name(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  if (level == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
  if (level == MPI_THREAD_SERIALIZED) return "MPI_THREAD_SERIALIZED";
  return "MPI_THREAD_MULTIPLE";
}

void make_last_call() {
  if (const auto call = std::exchange(last_call(), {})) call();
}

/// A thread that ends the process unless it is stopped within the time limit.
std::jthread init_timeout(std::chrono::milliseconds longest) {
  const auto timeout = std::min(longest, detail::Deadline::longest);
  const detail::SignalsBlocked blocked;
  return std::jthread([timeout](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    const auto* awaited = " s for other processes of this job";
    detail::ReportTimes reports(Environment::get().stall_warning);
    for (detail::Deadline deadline(timeout); !deadline.passed();) {
      stopped.wait_for(lock, stop, deadline.nap(), [] { return false; });
      if (stop.stop_requested()) return;
      if (const auto time = reports.due(deadline.elapsed())) {
        log::notice(concat("init: MPI_Init has waited ", time->count() / 1000.0, awaited));
      }
    }
    const std::chrono::duration<double> waited = timeout;
    std::cerr << concat("init: MPI_Init waited ", waited.count(), awaited, "; this process ends\n")
              << std::flush;
    std::_Exit(1);
  });
}

/// Finalises MPI at exit with code 0. With another code it does not wait for other ranks: the
/// launcher notifies them after this process has ended.
void finalize_at_exit(int exit_code, void*) {
  if (exit_code != 0 || abandoned || process().in_child() || finalized()) return;
  make_last_call();
  if (!abandoned) MPI_Finalize();
}

}  // namespace

std::string available() {
#ifdef LOCKSTEP_MPI_LIBRARY
  // Its functions are weak symbols: null if it was not loaded before this module.
  if (MPI_Init_thread == nullptr) return "got no " LOCKSTEP_MPI_LIBRARY "; install Open MPI";
#endif
  return {};
}

void Library::join(std::chrono::milliseconds timeout) {
  last_call();  // outlives the handler below, which is registered after it
  process();
  if (finalized()) {
    throw BackendUnavailable("mpi: MPI has ended in this process; call init() before MPI_Finalize");
  }
  if (!initialized()) {
    int level = 0;
    const auto limit = init_timeout(timeout);
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) {
      throw BackendUnavailable("mpi: MPI_Init_thread failed; what MPI wrote to stderr says why");
    }
    ::on_exit(finalize_at_exit, nullptr);
    initialized_here = true;
  }
  if (thread_level() == MPI_THREAD_SINGLE) {
    throw BackendUnavailable(
        "mpi: the program initialised MPI with MPI_THREAD_SINGLE, expected MPI_THREAD_FUNNELED or "
        "more: call MPI_Init_thread, or leave it to init()");
  }
  log::debug(concat("mpi: ", version(), ", ", level_name(thread_level())));
}

bool Library::running() { return initialized() && !finalized() && !process().in_child(); }

bool Library::ended() { return finalized(); }

bool Library::admits_this_thread() {
  return thread_level() >= MPI_THREAD_SERIALIZED || !running() || answer(MPI_Is_thread_main);
}

std::string Library::why_no_thread() {
  // If the program initialised MPI for one thread at a time, a progress thread could call MPI at
  // the same time as the program.
  const int least = initialized_here ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
  const int level = thread_level();
  if (level >= least) return {};
  return concat(initialized_here ? "MPI provides " : "the program initialised MPI with ",
                level_name(level), ", and a thread needs ", level_name(least));
}

void Library::at_end(std::function<void()> call) {
  last_call() = std::move(call);
  // MPI_Finalize begins with deleting the attributes of this communicator.
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(
      MPI_COMM_NULL_COPY_FN,
      [](MPI_Comm, int, void*, void*) {
        make_last_call();
        return MPI_SUCCESS;
      },
      &key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
}

void Library::abandon() { abandoned = true; }

std::string version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  // "Open MPI v4.1.4, package: …" or "MPICH Version:\t4.0.2\nMPICH Release date: …"
  std::string name(text.data(), static_cast<std::size_t>(length));
  name = name.substr(0, name.find_first_of(std::string_view(",\n\0", 3)));
  std::string words;
  std::istringstream in(name);
  for (std::string word; in >> word;) words += (words.empty() ? "" : " ") + word;
  return words;
}

}  // namespace lockstep::mpi
