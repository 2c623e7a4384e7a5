#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/messages/network.h"
#include "comm/mpi/library.h"

namespace lockstep::inline v0_2::mpi {

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
    std::size_t parts;
    std::size_t bytes = 0;
    Done done;
  };

  template <class Begin>
  void begin(std::size_t bytes, Message message, const Begin& begin_part);

  std::unique_ptr<Requests> requests_;
};

}  // namespace lockstep::mpi
