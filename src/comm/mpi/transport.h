#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep::inline v0_2::mpi {

/// Non-blocking messages of bytes between the processes of an MPI. Messages of one pair of ranks
/// and one tag are received in the order in which they were sent. Each must have the expected
/// length, unless the receiver offers a larger buffer than it needs. A Transport has no groups and
/// no collectives. Throws: CommError with MPI's own message.
class Transport {
 public:
  /// Called once a message is complete; bytes is the received length. It may begin other messages.
  using Done = std::function<void(std::size_t bytes)>;

  static constexpr int anyone = -1;

  /// Over all processes that MPI knows. Collective.
  Transport();
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  ///< ranks on this host
  int last_tag() const { return last_tag_; }

  void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done);
  /// The same, over not before the receiver has asked for it.
  void send_synchronously(const std::byte* data, std::size_t bytes, int to, int tag, Done done);
  void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done);

  /// Stops waiting for messages of that tag; what is still to be sent goes out.
  void cancel(int tag);

  /// Stops waiting for any message.
  void stop() noexcept;

  /// Moves bytes, and calls what is to be done for messages that are over. True if any was.
  bool progress();

 private:
  struct Requests;
  /// A message, maybe cut into several because MPI counts with int.
  struct Message {
    int tag;
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
