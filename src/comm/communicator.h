#pragma once

#include <chrono>
#include <concepts>
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

#include "comm/operation.h"
#include "core/failure.h"
#include "lockstep/types.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2 {

/// The elements of the ranks' parts: as many for each rank, or counts[r] for rank r. Every rank
/// passes the same counts.
struct Parts {
  Parts(std::size_t of_each) : count(of_each) {}  // NOLINT(google-explicit-constructor)
  template <std::convertible_to<std::span<const std::size_t>> Counts>
  Parts(const Counts& of_ranks) : counts(of_ranks) {}  // NOLINT(google-explicit-constructor)

  std::size_t count = 0;
  std::span<const std::size_t> counts = {};
};

/// A group of ranks that exchange raw memory. Every rank of the group issues the same collectives
/// in the same order. Only one thread at a time may use the groups of a rank. Results have the same
/// bits on every rank.
///
/// Every collective checks its arguments, returns at once and is complete when the Work's wait()
/// returns. An InvalidArgument consumes no sequence number. Counts are in elements of dtype.
/// Buffers without elements may be null. An output must not overlap its input, but this rank's part
/// may be at its place in both.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view backend() const = 0;
  /// The world rank of a rank of this group.
  virtual int world_rank(int rank) const { return rank; }
  /// "all_reduce #17 (host) rank 2 of 4", for error texts.
  std::string where(std::string_view label) const;
  /// The host index of each rank; hosts are numbered in the order of their first ranks.
  const std::vector<int>& hosts() const { return hosts_; }

  /// data[i] = reduction over ranks of data[i], in place.
  /// Shapes: count elements, the same on all ranks.
  Work all_reduce(void* data, std::size_t count, DType dtype, Reduction reduction,
                  Issue issue = {});
  /// The same sum or avg of float32 elements, sent in the wire dtype; the result is rounded to it.
  Work all_reduce(void* data, std::size_t count, ReduceOp op, const Wire& wire, Issue issue = {});
  /// Root's data[i] = reduction over ranks of data[i]. Other ranks' data stay as they are.
  /// Shapes: count elements, the same on all ranks.
  Work reduce(void* data, std::size_t count, DType dtype, Reduction reduction, int root,
              Issue issue = {});
  /// Every rank's data = root's data.
  Work broadcast(void* data, std::size_t count, DType dtype, int root, Issue issue = {});
  /// output = all ranks' inputs in rank order.
  /// Shapes: input this rank's part, output all parts.
  Work all_gather(const void* input, void* output, Parts parts, DType dtype, Issue issue = {});
  /// output = this rank's part of the reduction of input over ranks.
  /// Shapes: input all parts, output this rank's part.
  Work reduce_scatter(const void* input, void* output, Parts parts, DType dtype,
                      Reduction reduction, Issue issue = {});
  /// Root's output = all ranks' inputs in rank order. output is used on root only.
  /// Shapes: input this rank's part, root's output all parts.
  Work gather(const void* input, void* output, Parts parts, DType dtype, int root,
              Issue issue = {});
  /// output = this rank's part of root's input. input is used on root only.
  /// Shapes: root's input all parts, output this rank's part.
  Work scatter(const void* input, void* output, Parts parts, DType dtype, int root,
               Issue issue = {});
  /// Part r of output = the part of rank r's input for this rank.
  /// Shapes: both size()·count.
  Work all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                  Issue issue = {});
  /// The same with parts of different lengths, which differ between ranks: input_counts[r] elements
  /// for rank r and output_counts[r] from rank r. The ranks compare them.
  Work all_to_all(const void* input, void* output, std::span<const std::size_t> input_counts,
                  std::span<const std::size_t> output_counts, DType dtype, Issue issue = {});
  /// Complete when dst has received the message, or has copied it for a later recv(). A message
  /// completes the first recv() of its tag that was issued for its source or any_source. Messages
  /// of the same two ranks and tag do not overtake one another. Both sides must pass the same count
  /// and dtype.
  /// Backends that do not match by tag match the messages of two ranks in order: tags that differ
  /// then end the world. NCCL does not match by tag.
  /// Throws: BackendUnavailable for a recv() from any_source if the backend does not match by tag.
  Work send(const void* input, std::size_t count, DType dtype, int dst, std::uint32_t tag = 0,
            Issue issue = {});
  Work recv(void* output, std::size_t count, DType dtype, int src, std::uint32_t tag = 0,
            Issue issue = {});
  Work barrier(Issue issue = {});
  /// Issues an operation of another group of the same ranks, with the same buffers.
  Work reissue(const Operation& operation);

  /// Whether messages are matched by tag, and recv() takes any_source.
  virtual bool matches_by_tag() const { return false; }

  /// Memory that this communicator exchanges without a copy, 64-byte aligned. It is zero when it is
  /// first allocated, not when it is reused. The handle also keeps the world's memory alive. Not
  /// collective.
  /// Throws: CommError if memory is short.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// The place of memory from allocate(), from which every rank of the group gets the same memory
  /// by at_place(). nullopt for other memory, and if ranks do not share memory.
  virtual std::optional<std::uint64_t> place_of(const void* memory) const;
  /// The memory at a place that place_of() returned on any rank. Callers order accesses of several
  /// ranks by collectives.
  /// Throws: CommError if ranks do not share memory.
  virtual std::byte* at_place(std::uint64_t place) const;

  /// The new group of the ranks that pass the same color, ordered by (key, rank). Null for a
  /// negative color. Collective.
  virtual std::shared_ptr<Communicator> split(int color, int key) = 0;

  /// The new group of these ranks, in this order. Only its members call it, with the same list of
  /// different ranks. It is a world of its own with backend host, and a part of the world with
  /// others.
  /// Throws: BackendUnavailable if the backend has no such groups. TimeoutError and CommError if a
  /// member does not call it.
  virtual std::shared_ptr<Communicator> new_group(std::span<const int> members);

  /// Sets the source of the following operations, which ranks compare.
  void set_source(const Source& source) { source_ = source; }
  /// The current source of operations.
  const Source& source() const { return source_; }
  /// The last number of this rank's owners of sources; 0 for none. Members agree on the next one:
  /// higher than the last of each.
  std::uint16_t last_owner() const { return *last_owner_; }
  void set_last_owner(std::uint16_t number) { *last_owner_ = number; }
  /// Numbers the owners of this group together with those of the other one.
  void number_owners_with(const Communicator& other) { last_owner_ = other.last_owner_; }

  /// The sequence number of the last collective that this rank has issued; 0 for none.
  std::uint64_t sequence() const { return sequence_; }

  /// Sets the observer of the begin and the end of the following operations; null for none. Stages
  /// of an operation in other groups are not reported.
  void set_observer(std::shared_ptr<detail::OperationObserver> observer) {
    observer_ = std::move(observer);
  }
  const std::shared_ptr<detail::OperationObserver>& observer() const { return observer_; }

  /// Ends the world for every rank. cause is the text of an error of this rank's program. Any
  /// thread.
  virtual void fail(std::string_view cause) noexcept = 0;
  /// Ends the world with a failure that this rank has detected; another rank may be at fault. If
  /// the failure is a timeout, ranks raise TimeoutError. Any thread.
  virtual void fail_with(const detail::Failure& failure) noexcept { fail(failure.text); }
  /// Advances pending operations without blocking.
  /// Throws: the failure of the world, if it has failed.
  virtual void make_progress() {}
  /// Counts a training step of this rank, which `lockstep status` shows.
  virtual void count_step() noexcept {}
  /// Checks that no other rank's process has ended and that none has left by an error. For a caller
  /// that waits for other ranks without an operation of this group. Backends whose control
  /// connection detects ended processes need no check.
  /// label: what the caller waits for.
  /// Throws: CommError if a process has ended.
  virtual void check_processes(std::string_view /*label*/) {}

 protected:
  /// All ranks are on one host until set_hosts() says otherwise.
  Communicator(int rank, int size)
      : rank_(rank), size_(size), hosts_(static_cast<std::size_t>(size)) {}
  void set_hosts(std::vector<int> hosts) { hosts_ = std::move(hosts); }

  /// Begins an operation whose arguments are checked, without blocking. Calls number() when no
  /// exception can be thrown any more.
  virtual Work begin(Operation&& operation) = 0;
  void number(Operation& operation);
  /// output[i] = input[i] · factor, for floats. The memory is of the kind that the group exchanges.
  virtual void multiply(const std::byte* input, std::byte* output, std::size_t count, DType dtype,
                        double factor);

 private:
  /// factor: of this rank, for a premultiplied_sum.
  Work issue(Operation&& operation, Issue&& issue, double factor = 1);
  void premultiply(Operation& operation, double factor);
  template <class... Parts>
  [[noreturn]] void refuse(const Operation& operation, const Parts&... what) const;
  void check(const Operation& operation) const;
  void check_wire(const Operation& operation) const;
  void check_counts(const Operation& operation, std::span<const std::size_t> counts) const;

  int rank_;
  int size_;
  std::vector<int> hosts_;
  std::uint64_t sequence_ = 0;
  std::shared_ptr<std::uint16_t> last_owner_ = std::make_shared<std::uint16_t>(0);
  std::map<std::pair<Collective, int>, std::uint64_t> messages_;
  Source source_;
  std::shared_ptr<detail::OperationObserver> observer_;
};

/// Sets the source of a group's operations until the end of the scope.
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
