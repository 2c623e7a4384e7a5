#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

/// Which part of a program issues an operation. Ranks compare it together with the operation, so
/// that operations of equal size that different parts issue are not mistaken for one another.
struct Source {
  enum class Owner : std::uint8_t { none, distributed_data_parallel, distributed_optimizer };
  enum class Content : std::uint8_t {
    unspecified,
    gradients,
    parameters,
    buffers,
    step_agreement,  ///< whether gradients are exchanged before a step
    participation,   ///< which parameters took part in a backward
    bucket_order,    ///< in which buckets are exchanged from now on
    weights,         ///< of ranks with unequal parts
    model            ///< the check and the broadcast at construction
  };

  Owner owner = Owner::none;
  Content content = Content::unspecified;
  std::uint16_t number = 0;  ///< of the owner in its group: Communicator::number_owner()
  std::int32_t bucket = -1;  ///< of gradients or parameters; -1 for none

  bool operator==(const Source&) const = default;
};

/// "bucket 0 of the gradients of DistributedDataParallel #2"; empty for no source.
std::string to_text(const Source& source);

/// One collective as a value: what is checked, compared between ranks, logged and executed.
struct Operation {
  Collective collective = Collective::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  std::optional<Wire> wire = {};  ///< wire dtype of an all_reduce; none: its own

  const std::byte* input = nullptr;
  std::byte* output = nullptr;

  /// Elements of one part: of the whole buffer for all_reduce, broadcast, send and recv; of one
  /// rank's part else.
  std::size_t count = 0;
  /// Elements of each rank's part where they differ (all_gather, reduce_scatter, gather, scatter),
  /// else empty.
  std::vector<std::size_t> counts = {};

  int peer = -1;  ///< root of broadcast, gather and scatter; the other rank of send and recv
  std::uint32_t tag = 0;
  std::chrono::milliseconds timeout{};  ///< longest wait; zero takes the world's
  std::uint64_t sequence = 0;           ///< number in its group, from 1, given when it is issued

  /// The shape of the caller's tensor, for the comparison between ranks; empty for raw memory.
  std::vector<std::int64_t> shape = {};
  /// Which part of the program issues it, for the comparison between ranks.
  Source source = {};
  /// Kept until the operation is complete, so that the buffers outlive it.
  std::shared_ptr<const void> owner = {};
  /// The operation that this is a part of: what members announce to one another in its place.
  std::shared_ptr<const Operation> part_of = {};

  /// The form in which its elements leave a rank.
  DType travels_as() const { return wire ? wire->dtype : dtype; }

  /// Between two ranks, not all: send and recv.
  bool is_message() const {
    return collective == Collective::send || collective == Collective::recv;
  }
  bool has_root() const {
    return collective == Collective::broadcast || collective == Collective::gather ||
           collective == Collective::scatter;
  }
  /// Elements of rank's part, and how many elements lie before it.
  std::size_t part(int rank) const {
    return counts.empty() ? count : counts[static_cast<std::size_t>(rank)];
  }
  std::size_t part_begin(int rank) const;

  /// "all_reduce #17", for messages.
  std::string label() const;
};

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

/// A run of elements within a part.
struct Range {
  std::size_t begin = 0;
  std::size_t length = 0;
};

/// Member's slice of length elements that are divided among members, whole cache lines.
Range slice_of(std::size_t length, std::size_t element, int member, int members);

/// How a collective's data lie: which members' inputs are read by others (sources), and into how
/// many parts each is cut.
class Shape {
 public:
  Shape(const Operation& operation, int size);

  bool is_source(int member) const;
  bool has_sources() const { return operation_.collective != Collective::barrier; }
  /// Parts of each source's input: one, or one for every member.
  int parts() const { return parted_ ? size_ : 1; }
  /// Elements of a source's part, and how many elements of that source lie before it.
  std::size_t length(int source, int part) const;
  std::size_t begin(int part) const { return parted_ ? operation_.part_begin(part) : 0; }
  /// Elements of a source's whole input, and the longest of all sources.
  std::size_t total(int source) const;
  std::size_t longest_total() const;
  std::size_t longest_part() const;

 private:
  const Operation& operation_;
  int size_;
  bool parted_;
};

}  // namespace lockstep::detail
