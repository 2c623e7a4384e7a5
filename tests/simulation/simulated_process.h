#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

class SimulatedFile;
struct SimulatedThread;
struct SimulatedMpi;

/// A process with its threads and open files.
class SimulatedProcess {
 public:
  SimulatedProcess(int pid, int host) : pid_(pid), host_(host) {}

  int pid() const { return pid_; }
  int host() const { return host_; }

  // Files, by descriptors. As in the kernel, a new one is the lowest that is free.
  int open(std::shared_ptr<SimulatedFile> file);
  std::shared_ptr<SimulatedFile> file(int descriptor) const;
  void replace(int descriptor, std::shared_ptr<SimulatedFile> file) {
    files_[descriptor] = std::move(file);
  }
  void close(int descriptor);
  const std::map<int, std::shared_ptr<SimulatedFile>>& files() const { return files_; }

  // State.
  bool over() const { return over_; }      ///< it has ended or died
  bool frozen() const { return frozen_; }  ///< stopped, as by SIGSTOP
  /// Ends the process. Its files are closed unless its host has lost power.
  void end(bool closes_files);
  void freeze() { frozen_ = true; }
  void thaw() { frozen_ = false; }

  // Threads. The first one is the main thread.
  void add(SimulatedThread& thread) { threads_.push_back(&thread); }
  void remove(SimulatedThread& thread) { std::erase(threads_, &thread); }
  std::size_t running_threads() const { return threads_.size(); }
  /// Keeps a thread that is due until the process is thawed.
  void defer(SimulatedThread& thread, std::uint64_t wait) { deferred_.emplace_back(&thread, wait); }
  std::vector<std::pair<SimulatedThread*, std::uint64_t>> take_deferred() {
    return std::exchange(deferred_, {});
  }

  // Its end.
  /// Calls the function with the exit code when the process ends by itself.
  void at_exit(std::function<void(int)> call) { exit_calls_.push_back(std::move(call)); }
  /// Makes these calls, the last one first, in the thread that ends the process.
  void make_exit_calls(int exit_code);

  // Faults.
  /// Calls the function at the process's call with this number. Every call of the kernel and of MPI
  /// counts.
  void at_call(std::uint64_t number, std::function<void()> action) {
    actions_.emplace(number, std::move(action));
  }
  /// The same, with calls counted from the process's first socket.
  void at_call_after_socket(std::uint64_t number, std::function<void()> action) {
    after_socket_.emplace_back(number, std::move(action));
  }
  void count_socket();
  void count_call();
  std::uint64_t calls() const { return calls_; }

  /// Number of its news: packets, messages and freed space. A thread that polls without news sleeps
  /// longer.
  std::uint64_t news = 0;
  std::uint64_t news_read = 0;

  std::shared_ptr<SimulatedMpi> mpi;  ///< its MPI library
  std::string stderr_text;            ///< what it has written to stderr

 private:
  int pid_;
  int host_;
  std::map<int, std::shared_ptr<SimulatedFile>> files_;
  bool over_ = false;
  bool frozen_ = false;
  std::vector<SimulatedThread*> threads_;
  std::vector<std::pair<SimulatedThread*, std::uint64_t>> deferred_;
  std::vector<std::function<void(int)>> exit_calls_;
  std::uint64_t calls_ = 0;
  std::multimap<std::uint64_t, std::function<void()>> actions_;
  std::vector<std::pair<std::uint64_t, std::function<void()>>> after_socket_;
};

}  // namespace lockstep::testing
