#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/messages/transport.h"

namespace lockstep::inline v0_2::mpi {

/// Messages between MPI processes. A message may be shorter than the receiver's buffer.
/// Throws: CommError with MPI's error text, from any function.
class MpiTransport final : public messages::Transport {
 public:
  static constexpr int anyone = -1;

  /// Over all processes of MPI_COMM_WORLD. Collective.
  MpiTransport();
  ~MpiTransport() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  ///< ranks on this host
  int last_tag() const { return last_tag_; }

  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) override;
  /// from may be `anyone`: any rank.
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
  int rank_ = 0;
  int size_ = 1;
  int local_size_ = 1;
  int last_tag_ = 0;
};

}  // namespace lockstep::mpi
