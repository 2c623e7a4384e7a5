#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/messages/transport.h"

namespace lockstep::inline v0_2::mpi {

/// Messages between the processes of an MPI. A message may be shorter than the receiver's buffer.
/// Throws: CommError with MPI's own message.
class MpiTransport final : public messages::Transport {
 public:
  static constexpr int anyone = -1;

  /// Over all processes that MPI knows. Collective.
  MpiTransport();
  ~MpiTransport() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  ///< ranks on this host
  int last_tag() const { return last_tag_; }

  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) override;
  /// from may be anyone.
  void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) override;
  bool progress() override;
  /// MPI still sends the messages that it has accepted.
  void stop() noexcept override;

 private:
  struct Requests;
  /// A message, maybe cut into several because MPI counts with int.
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
