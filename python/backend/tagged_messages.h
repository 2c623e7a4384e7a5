#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "backend/progress_work.h"
#include "comm/communicator.h"

namespace lockstep_torch {

/// The tag of messages of an operation that this backend composes of messages. c10d's tags are not
/// negative ints.
enum class ReservedTag : std::uint32_t { monitored_barrier = 0x8000'0000 };

inline constexpr int any_source = -1;

/// Receives by tag and from any source. A Communicator matches the messages of two ranks in the
/// order in which they were sent. A message whose tag no receive expects yet is kept while another
/// receive waits for its sender. Guarded by the mutex of Progress.
class TaggedMessages {
 public:
  explicit TaggedMessages(lockstep::Communicator& world);

  /// Begins to receive into contiguous memory. It is complete when work->parts.receives has
  /// decreased.
  void receive(const WorkPointer& work, const at::Tensor& buffer, int source, std::uint32_t tag);
  /// Receives the messages that have arrived; true if there was one.
  bool advance();
  bool waiting() const { return !receives_.empty(); }
  /// The sources that the Work waits for; any source is not a rank.
  std::vector<int> missing(const BackendWork& work) const;
  /// Removes the receives of a Work.
  void forget(const BackendWork& work);

 private:
  struct Receive {
    WorkPointer work;
    at::Tensor buffer;
    int source;
    std::uint32_t tag;

    bool expects(int from, std::uint32_t with) const {
      return (source == from || source == any_source) && tag == with;
    }
  };
  struct Early {
    at::Tensor content;
    std::uint32_t tag;
  };

  bool expects_from(int source) const;
  bool advance(int source);
  void deliver(std::deque<Receive>::iterator receive, int source, const at::Tensor& content);
  void complete(std::deque<Receive>::iterator receive, int source);

  lockstep::Communicator& world_;
  std::deque<Receive> receives_;
  std::vector<std::deque<Early>> early_;  ///< of each rank
};

}  // namespace lockstep_torch
