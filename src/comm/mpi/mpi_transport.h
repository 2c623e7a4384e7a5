#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/messages/network.h"

namespace lockstep::inline v0_2::mpi {

/// The MPI library of this process. Either the program initialises and finalises MPI, or Lockstep
/// initialises it and finalises it when the process exits with code 0.
class Library {
 public:
  /// Initialises MPI, unless the program has. MPI_Init waits for every process of the job and has
  /// no timeout: after `timeout`, the process exits with a line on stderr.
  /// Throws: BackendUnavailable if MPI is finalised, or if its thread level is too low.
  static void join(std::chrono::milliseconds timeout);

  /// Whether MPI is initialised and not finalised, in the process that initialised it.
  static bool running();
  /// Whether MPI is finalised: no function of MPI may be called.
  static bool ended();
  /// Whether this thread may call MPI while it runs. Below MPI_THREAD_SERIALIZED, only the thread
  /// that initialised it may.
  static bool admits_this_thread();
  /// The reason why a progress thread may not call MPI; empty if it may. Call it after join().
  static std::string why_no_thread();

  /// Registers a function that is called once before MPI is finalised, by Lockstep or by the
  /// program. Call it after join().
  static void at_end(std::function<void()> last_call);
  /// Prevents MPI_Finalize at exit, after the world has failed: it would wait for other ranks for
  /// ever.
  static void abandon();
};

/// Messages between MPI processes. A message may be shorter than the receiver's buffer.
/// Throws: CommError with MPI's error text, from any function.
class MpiTransport final : public messages::Network {
 public:
  /// Over all processes of MPI_COMM_WORLD. Collective.
  MpiTransport();
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  messages::Pieces pieces(int hosts) const override;
  bool is_running() const noexcept override { return Library::running(); }
  void expect_usable_thread() const override;
  void abandon() noexcept override { Library::abandon(); }

  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) override;
  void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) override;
  bool progress() override;
  /// MPI may still send messages after this call.
  void stop() noexcept override;

 private:
  struct Requests;
  /// A message, which is divided into several MPI messages if its bytes exceed an int.
  struct Message {
    bool receiving;
    std::size_t parts = 0;
    std::size_t bytes = 0;
    Done done;
  };

  template <class Begin>
  void begin(std::size_t bytes, Message message, const Begin& begin_part);

  std::unique_ptr<Requests> requests_;
};

}  // namespace lockstep::mpi
