#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/control/failure.h"
#include "comm/operation.h"
#include "comm/operation_observer.h"
#include "lockstep/types.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

/// How a collective is issued; the buffer's owner and shape serve lifetime and error text.
struct Issue {
  std::chrono::milliseconds timeout{};  ///< zero takes the world's
  std::vector<std::int64_t> shape = {};
  Source source = {};  ///< which part of the program issues it; none takes the group's
  std::shared_ptr<const void> owner = {};
  /// The operation of another group that this one is a part of. Members announce that operation.
  std::shared_ptr<const Operation> part_of = {};
};

/// A group of ranks that exchange raw memory. Every rank of the group issues the same collectives
/// in the same order; one rank's groups are used by one thread at a time. Results are the same bits
/// on every rank.
///
/// Every collective checks its arguments (InvalidArgument consumes no sequence number), returns at
/// once and is complete when the Work's wait() returns. Counts are elements of dtype. Buffers may
/// be null when they hold no element.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view backend() const = 0;
  /// The number that a rank of this group has in the world.
  virtual int world_rank(int rank) const { return rank; }
  /// Which host each rank is on, numbered in the order of their first ranks.
  const std::vector<int>& hosts() const { return hosts_; }

  /// data[i] = reduction over ranks of data[i], in place. Shapes: count elements, the same on all
  /// ranks.
  Work all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Issue issue = {});
  /// The same sum or avg of float32 elements, sent in the wire dtype; the result is rounded to it.
  Work all_reduce(void* data, std::size_t count, ReduceOp op, const Wire& wire, Issue issue = {});
  /// Every rank's data = root's data.
  Work broadcast(void* data, std::size_t count, DType dtype, int root, Issue issue = {});
  /// output = rank 0's input, then rank 1's, … Shapes: input count, output size()·count.
  Work all_gather(const void* input, void* output, std::size_t count, DType dtype,
                  Issue issue = {});
  /// The same with counts[r] elements from rank r. Every rank passes the same counts.
  Work all_gather(const void* input, void* output, std::span<const std::size_t> counts, DType dtype,
                  Issue issue = {});
  /// output = this rank's part of the reduction of input. Shapes: input size()·count, output count.
  Work reduce_scatter(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                      Issue issue = {});
  /// The same with counts[r] elements for rank r.
  Work reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DType dtype, ReduceOp op, Issue issue = {});
  /// Root's output = rank 0's input, then rank 1's, … output is used on root only.
  Work gather(const void* input, void* output, std::size_t count, DType dtype, int root,
              Issue issue = {});
  /// output = this rank's part of root's input (size()·count elements, used on root only).
  Work scatter(const void* input, void* output, std::size_t count, DType dtype, int root,
               Issue issue = {});
  /// output part r = rank r's input part for this rank. Shapes: both size()·count. Not in place.
  Work all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                  Issue issue = {});
  /// Complete once dst has received. Messages between two ranks match in order and must agree on
  /// count, dtype and tag.
  Work send(const void* input, std::size_t count, DType dtype, int dst, std::uint32_t tag = 0,
            Issue issue = {});
  Work recv(void* output, std::size_t count, DType dtype, int src, std::uint32_t tag = 0,
            Issue issue = {});
  Work barrier(Issue issue = {});

  /// Memory that this communicator exchanges without copying, 64-byte aligned, zeroed when first
  /// taken; local, not collective. It lives as long as the handle, and keeps the world's memory
  /// alive. Throws: CommError when the machine has not that much memory.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// A name for memory of allocate(), by which every rank of the group finds it with at_place();
  /// none where ranks do not share memory, and for other memory.
  virtual std::optional<std::uint64_t> place_of(const void* memory) const;
  /// The memory at a place that any rank named. Collectives settle which rank may access it when.
  /// Throws: CommError where ranks do not share memory.
  virtual std::byte* at_place(std::uint64_t place) const;

  /// Ranks of equal color form a group, ordered by (key, rank). Collective over this group.
  /// A negative color joins none and returns null.
  virtual std::shared_ptr<Communicator> split(int color, int key) = 0;

  /// Collectives come from this source from now on: ranks compare it.
  void set_source(const Source& source) { source_ = source; }
  /// The source that collectives come from at present.
  const Source& source() const { return source_; }
  /// Numbers the owners of sources in this group: 1, 2, … Ranks that construct them in the same
  /// order get the same numbers.
  std::uint16_t number_owner() { return ++owners_; }

  /// Reports the begin and the end of operations that are issued from now on; null reports to
  /// nobody. Operations of other groups that an operation is composed of are not reported.
  void set_observer(std::shared_ptr<detail::OperationObserver> observer) {
    observer_ = std::move(observer);
  }
  const std::shared_ptr<detail::OperationObserver>& observer() const { return observer_; }

  /// Ends the world for every rank: this text of an error of this rank's program is the first
  /// cause. Any thread.
  virtual void fail(std::string_view cause) noexcept = 0;
  /// fail() with a failure that this rank has detected, which may be another rank's fault. Ranks
  /// raise TimeoutError for a timeout.
  virtual void fail_with(const control::Failure& failure) noexcept { fail(failure.text); }
  /// Moves what is under way without blocking. Throws what ended the world, if it has ended.
  virtual void look() {}

 protected:
  /// All ranks are on one host until set_hosts() says otherwise.
  Communicator(int rank, int size)
      : rank_(rank), size_(size), hosts_(static_cast<std::size_t>(size)) {}
  void set_hosts(std::vector<int> hosts) { hosts_ = std::move(hosts); }

  /// Starts a checked operation, numbered by number() once nothing can refuse it any more. Never
  /// blocks.
  virtual Work begin(Operation&& operation) = 0;
  void number(Operation& operation);

 private:
  Work issue(Operation&& operation, Issue&& issue);
  std::string where(const Operation& operation) const;
  template <class... Parts>
  [[noreturn]] void refuse(const Operation& operation, const Parts&... what) const;
  void check(const Operation& operation) const;
  void check_wire(const Operation& operation) const;

  int rank_;
  int size_;
  std::vector<int> hosts_;
  std::uint64_t sequence_ = 0;
  std::uint16_t owners_ = 0;
  std::map<std::pair<Collective, int>, std::uint64_t> messages_;
  Source source_;
  std::shared_ptr<detail::OperationObserver> observer_;
};

/// Collectives that a group issues while it lives come from a source.
class SourceScope {
 public:
  SourceScope(Communicator& group, const Source& source) : group_(group), before_(group.source()) {
    group_.set_source(source);
  }
  ~SourceScope() { group_.set_source(before_); }
  SourceScope(const SourceScope&) = delete;
  SourceScope& operator=(const SourceScope&) = delete;

 private:
  Communicator& group_;
  Source before_;
};

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

/// Issues the operation in another group of the same ranks, with the same buffers.
Work reissue(Communicator& group, const Operation& operation);

}  // namespace lockstep::detail
