#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// The part of a program that issues an operation. Ranks compare it together with the operation, so
/// that operations of equal size from different parts are not matched.
struct Source {
  enum class Owner : std::uint8_t {
    none,
    distributed_data_parallel,
    distributed_optimizer,
    differentiable  ///< a collective that is part of autograd's graph
  };
  enum class Content : std::uint8_t {
    unspecified,
    gradients,
    parameters,
    buffers,
    step_agreement,  ///< whether gradients are exchanged before a step
    participation,   ///< which parameters took part in a backward
    bucket_order,    ///< the new order in which buckets are exchanged
    weights,         ///< of the ranks' gradients
    wrappers,        ///< those that a backward reaches
    model,           ///< check and broadcast at construction
    group_number,    ///< of a group that only its members create
    backward,        ///< of a differentiable collective
    metrics,         ///< compute() and Tally::score()
    checkpoint,
    condition,  ///< Group::mean(), any() and all()
    all_or_none,
    early_stopping,
    uneven_inputs,  ///< whether the ranks have another batch
    grad_scaler,    ///< whether a gradient is infinite
    refusal         ///< of arguments: its text is in the shape
  };

  Owner owner = Owner::none;
  Content content = Content::unspecified;
  /// Of the owner, as Communicator::last_owner(). Of a differentiable collective, the lower
  /// bits of its sequence number. Of a refusal, the Collective.
  std::uint16_t number = 0;
  std::int32_t bucket = -1;  ///< of gradients or parameters; -1 for none

  bool operator==(const Source&) const = default;
};

/// "bucket 0 of the gradients of DistributedDataParallel #2"; empty for no source.
std::string to_text(const Source& source);
/// to_text() in parentheses after a space; empty for no source.
std::string in_parentheses(const Source& source);

/// Elements of the buffers of an operation on one rank; 0 for a buffer that the rank does not use.
struct Buffers {
  std::size_t input = 0;
  std::size_t output = 0;
};

struct Operation;

/// Optional arguments of every operation.
struct Issue {
  std::chrono::milliseconds timeout{};  ///< longest wait; 0 for the world's timeout
  /// The shape of the caller's tensor, for the comparison between ranks; empty for raw memory.
  std::vector<std::int64_t> shape = {};
  /// The part of the program that issues the operation, for the comparison between ranks. Default:
  /// Communicator::source().
  Source source = {};
  /// Owner of the buffers, kept until the operation is complete.
  std::shared_ptr<const void> owner = {};
  /// The operation of another group that this one is a stage of. Members announce that operation
  /// instead of this one.
  std::shared_ptr<const Operation> part_of = {};
  /// A message is matched with the next one of its two ranks, not by tag. Their tags must agree.
  bool in_order = false;
};

/// The arguments of one collective or message.
struct Operation {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  std::optional<Wire> wire = {};  ///< of an all_reduce; none: elements are sent in dtype

  const std::byte* input = nullptr;
  std::byte* output = nullptr;

  /// Elements of the whole buffer for all_reduce, reduce, broadcast, send and recv; else of one
  /// rank's part.
  std::size_t count = 0;
  /// Elements of each rank's part if they differ; else empty. The same on all ranks, except for an
  /// all_to_all: the elements of this rank's input for each rank, then those of its output from
  /// each rank.
  std::vector<std::size_t> counts = {};

  /// Root of broadcast, reduce, gather and scatter; the other rank of a message, or any_source.
  int peer = -1;
  std::uint32_t tag = 0;
  Issue issue = {};
  std::uint64_t sequence = 0;  ///< number in its group, from 1; set by begin()
  int group = 0;  ///< of an operation that has stages: the number of its group; 0 for the world

  /// The dtype in which elements are sent.
  DType wire_dtype() const { return wire ? wire->dtype : dtype; }

  /// Whether it is one of these collectives.
  bool is(auto... any) const { return ((collective == any) || ...); }
  bool is_message() const { return is(Collective::send, Collective::recv); }
  bool is_reduction() const {
    return is(Collective::all_reduce, Collective::reduce_scatter, Collective::reduce);
  }
  /// Whether only root uses the output, or sends its input.
  bool is_to_root() const { return is(Collective::gather, Collective::reduce); }
  bool is_from_root() const { return is(Collective::broadcast, Collective::scatter); }
  bool has_root() const { return is_to_root() || is_from_root(); }
  /// Whether the input has a part for each rank, or the output one of each rank.
  bool divides() const {
    return is(Collective::reduce_scatter, Collective::scatter, Collective::all_to_all);
  }
  bool collects() const {
    return is(Collective::all_gather, Collective::gather, Collective::all_to_all);
  }
  /// Whether it is an all_to_all whose counts differ between ranks.
  bool has_own_counts() const { return !counts.empty() && collective == Collective::all_to_all; }
  /// The counts of the parts of the input, or of all parts.
  std::span<const std::size_t> input_counts() const {
    return std::span(counts).first(has_own_counts() ? counts.size() / 2 : counts.size());
  }
  /// The counts of the parts of the output of an all_to_all with counts.
  std::span<const std::size_t> output_counts() const {
    return std::span(counts).subspan(counts.size() / 2);
  }
  /// Elements of a rank's part, and the number of elements before it.
  std::size_t part(int rank) const {
    return counts.empty() ? count : counts[static_cast<std::size_t>(rank)];
  }
  std::size_t part_begin(int rank) const {
    if (counts.empty()) return count * static_cast<std::size_t>(rank);
    return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
  }
  /// The same of the part that this rank receives from a rank: of the output of an all_gather,
  /// gather or all_to_all.
  std::size_t received(int rank) const {
    return has_own_counts() ? output_counts()[static_cast<std::size_t>(rank)] : part(rank);
  }
  std::size_t received_begin(int rank) const {
    if (!has_own_counts()) return part_begin(rank);
    const auto before = output_counts().first(static_cast<std::size_t>(rank));
    return std::accumulate(before.begin(), before.end(), std::size_t{0});
  }
  Buffers buffers(int rank, int size) const {
    const bool is_root = peer == rank;
    const bool has_input = !is(Collective::barrier, Collective::recv) &&
                           (collective != Collective::scatter || is_root);
    const bool has_output =
        !is(Collective::barrier, Collective::send) && (!is_to_root() || is_root);
    const std::size_t sent = divides() ? part_begin(size) : part(rank);
    const std::size_t got = collects() ? received_begin(size) : part(rank);
    return {.input = has_input ? sent : 0, .output = has_output ? got : 0};
  }

  /// The operation that members announce.
  const Operation& announced() const { return issue.part_of ? *issue.part_of : *this; }

  /// "all_reduce #17", for error texts.
  std::string label() const;
};

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

/// A contiguous range of elements.
struct Range {
  std::size_t begin = 0;
  std::size_t length = 0;
};

/// The slice of one member when `length` elements of `element` bytes are divided among members.
/// Slices begin at multiples of a cache line; the last ones may be shorter or empty.
Range slice_of(std::size_t length, std::size_t element, int member, int members);

/// The parts of a collective's data: which members' inputs other members read (sources), and into
/// how many parts each input is divided. Refers to the operation. A small collective takes 3 %
/// longer if these functions are not inline.
class Shape {
 public:
  Shape(const Operation& operation, int size, int rank)
      : operation_(operation), size_(size), rank_(rank), parted_(operation.divides()) {}

  bool is_source(int member) const {
    return operation_.collective != Collective::barrier &&
           (!operation_.is_from_root() || member == operation_.peer);
  }
  /// Whether a member's input, or its part of it, goes to the other member.
  bool sends(int source, int target) const {
    return is_source(source) && (!operation_.is_to_root() || target == operation_.peer);
  }
  /// Number of parts of each source's input: 1, or one for every member.
  int parts() const { return parted_ ? size_ : 1; }
  /// Elements of a part of a source's input. If the operation has counts of its own, this rank
  /// must be the source, or the part this rank's.
  std::size_t length(int source, int part) const {
    if (operation_.has_own_counts() && source != rank_) return operation_.received(source);
    return operation_.part(parted_ ? part : source);
  }
  /// Elements before a part of this rank's input, which are those of every source's unless the
  /// operation has counts of its own.
  std::size_t begin(int part) const { return parted_ ? operation_.part_begin(part) : 0; }
  /// Elements of this rank's output before what it gets of a source without a reduction.
  std::size_t place(int source) const {
    return operation_.collects() ? operation_.received_begin(source) : 0;
  }
  /// Elements of a source's whole input, and the largest number over all sources; of this rank's
  /// input if the operation has counts of its own. The same of the longest part.
  std::size_t total(int source) const {
    return parted_ ? operation_.part_begin(size_) : operation_.part(source);
  }
  std::size_t longest_total() const { return parted_ ? total(0) : longest_part(); }
  std::size_t longest_part() const {
    if (operation_.counts.empty()) return operation_.count;
    return std::ranges::max(operation_.input_counts());
  }

 private:
  const Operation& operation_;
  int size_;
  int rank_;
  bool parted_;
};

/// Reduces count elements of each rank's input in rank order, with the operation's reduction, dtype
/// and wire. All backends use it and get the same bits. An output may be one of the inputs.
inline void reduce(const Operation& operation, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count) {
  if (operation.wire) {
    kernels::reduce_rounded(*operation.wire, operation.reduce, inputs, outputs, count);
  } else {
    kernels::reduce(operation.dtype, operation.reduce, inputs, outputs, count);
  }
}

/// The times at which an operation began and was complete. Both are zero without a progress thread.
struct RequestInterval {
  std::chrono::steady_clock::time_point begun{};
  std::chrono::steady_clock::time_point complete{};
};

/// An operation that a group has issued.
struct ObservedOperation {
  Collective collective = Collective::barrier;
  Source source = {};
  std::uint64_t bytes = 0;  ///< of this rank's part, in its wire dtype

  // The observer's own: set by began(), kept until ended().
  void* record = nullptr;
  std::int64_t begun = 0;
};

/// The end of an operation: its wait() has returned.
struct ObservedEnd {
  std::chrono::steady_clock::time_point wait_began;
  std::chrono::steady_clock::time_point wait_ended;
  /// Time during the wait in which the thread reduced and copied, for any operation.
  std::chrono::nanoseconds worked_in_wait;
  std::chrono::nanoseconds worked;  ///< time that this rank reduced and copied for the operation
  RequestInterval interval;
};

/// Receives the begin and end of one group's operations on one rank, in the threads that use the
/// group. An operation that fails, or is never waited for, has no end event.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void began(ObservedOperation& operation) = 0;
  virtual void ended(const ObservedOperation& operation, const ObservedEnd& end) noexcept = 0;
};

}  // namespace lockstep::detail
