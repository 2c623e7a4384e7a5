#include "comm/messages/transfer.h"

#include <algorithm>
#include <cstring>
#include <deque>

namespace lockstep::inline v0_2::messages {

Transfer::Transfer(const MessageGroup& group, const Operation& operation)
    : group_(group), operation_(operation) {
  pending_with_.resize(static_cast<std::size_t>(size()));
}

void Transfer::advance() {
  bool ran = true;
  while (std::exchange(ran, false)) {
    for (auto* tasks : {&tasks_, &final_}) {
      for (auto& task : *tasks) ran = task.advance() || ran;
    }
  }
}

std::vector<int> Transfer::partners() const {
  std::vector<int> members;
  for (int member = 0; member < size(); ++member) {
    if (pending_with_[static_cast<std::size_t>(member)] > 0) members.push_back(member);
  }
  return members;
}

Network::Done Transfer::count(std::size_t bytes, int member, std::uint8_t* flag) {
  ++pending_with_[static_cast<std::size_t>(member)];
  ++pending_;
  const auto end = [this, member, flag](std::size_t) {
    --pending_with_[static_cast<std::size_t>(member)];
    --pending_;
    if (flag != nullptr) *flag = 1;
  };
  if (bytes > 0) return end;
  end(0);
  return {};
}

void Transfer::send(const std::byte* data, std::size_t bytes, int member, Channel channel,
                    std::uint8_t* flag) {
  auto done = count(bytes, member, flag);
  if (done) group_.send(data, bytes, member, channel, std::move(done));
}

void Transfer::receive(std::byte* data, std::size_t bytes, int member, Channel channel,
                       std::uint8_t* flag) {
  auto done = count(bytes, member, flag);
  if (done) group_.receive(data, bytes, member, channel, std::move(done));
}

namespace {

using detail::Task;
using detail::until;

/// All_gather, gather, scatter and all_to_all: parts are sent to members without a reduction, in
/// pieces or whole (Pieces::of_parts).
class Moves final : public Transfer {
 public:
  Moves(const MessageGroup& group, const Operation& operation)
      : Transfer(group, operation), shape_(this->operation(), size(), rank()) {
    const std::byte* input = operation.input;
    // MPI may copy the pieces that are sent. More receives than sends, so that pieces find their
    // receive also after this rank was late.
    constexpr std::size_t most_sent = 16 << 20;
    const auto others = std::max<std::size_t>(static_cast<std::size_t>(size()) - 1, 1);
    const auto to_send =
        std::clamp<std::size_t>(most_sent / pieces().bytes / others, 2, pieces().window);
    const auto to_receive = 4 * to_send;
    // Each rank begins with its neighbours, so that not all ranks send to the same member at the
    // same time.
    for (int step = 1; step < size(); ++step) {
      const int source = (rank() + size() - step) % size();
      const int target = (rank() + step) % size();
      if (shape_.sends(source, rank())) {
        run(in_pieces(shape_.length(source, rank()) * element(), to_receive,
                      [=, this, part = place_of_part(source)](auto at, auto bytes, auto* done) {
                        receive(part + at, bytes, source, Channel::parts, done);
                      }));
      }
      if (shape_.sends(rank(), target)) {
        run(in_pieces(shape_.length(rank(), target) * element(), to_send,
                      [=, this, part = input + shape_.begin(target) * element()](
                          auto at, auto bytes, auto* done) {
                        send(part + at, bytes, target, Channel::parts, done);
                      }));
      }
    }
    if (shape_.sends(rank(), rank())) {
      // In an in-place operation, a rank's own part may already be at its destination.
      const std::size_t bytes = shape_.length(rank(), rank()) * element();
      const std::byte* own = input + shape_.begin(rank()) * element();
      if (bytes > 0) std::memmove(place_of_part(rank()), own, bytes);
    }
  }

 private:
  std::byte* place_of_part(int source) const {
    return operation().output + shape_.place(source) * element();
  }

  /// Sends or receives a part in pieces. window: pieces in transit at the same time. begin() begins
  /// the message of a piece. It gets the first byte in the part, the length, and a flag. The flag
  /// becomes 1 when the message is complete.
  Task in_pieces(std::size_t bytes, std::size_t window, auto begin) {
    auto& done = in_transit_.emplace_back(window, std::uint8_t{1});
    const std::size_t piece = pieces().of_parts ? pieces().bytes : bytes;
    for (std::size_t at = 0; at < bytes; at += piece) {
      auto& before = done[at / piece % window];
      co_await until([&] { return before != 0; });
      before = 0;
      begin(at, std::min(piece, bytes - at), &before);
    }
  }

  /// For each part, whether the pieces in transit are complete, in turn.
  std::deque<std::vector<std::uint8_t>> in_transit_;
  detail::Shape shape_;
};

/// Short, so that a piece is sent on while the next one is received; long, so that there are few
/// pieces.
constexpr std::size_t piece_bytes = 1 << 20;
constexpr std::size_t most_pieces = 256;

/// Broadcast: root sends each other member a slice, and these exchange their slices. The members
/// except root are numbered from 0. Each receives its slice from root in pieces, and sends each
/// piece on to the others.
class Broadcast final : public Transfer {
 public:
  Broadcast(const MessageGroup& group, const Operation& operation) : Transfer(group, operation) {
    piece_elements_ =
        std::max(piece_bytes / element(), (slice(0).length + most_pieces - 1) / most_pieces);
    const auto each_piece = [&](int of, const auto& begin) {
      for (std::size_t i = 0; i < pieces(of); ++i)
        begin(i, piece_of(slice(of), i, piece_elements_));
    };
    if (rank() == operation.peer) {
      for (int other = 0; other < others(); ++other) {
        each_piece(other, [&](std::size_t, Range range) {
          send(place_of(range), range.length * element(), member_of(other), Channel::parts);
        });
      }
      return;
    }
    arrived_.resize(pieces(number()));
    each_piece(number(), [&](std::size_t i, Range range) {
      receive(place_of(range), range.length * element(), operation.peer, Channel::parts,
              &arrived_[i]);
    });
    for (int other = 0; other < others(); ++other) {
      if (other == number()) continue;
      each_piece(other, [&](std::size_t, Range range) {
        receive(place_of(range), range.length * element(), member_of(other), Channel::results);
      });
    }
    run(pass_on());
  }

 private:
  int others() const { return size() - 1; }
  int member_of(int number) const { return number < operation().peer ? number : number + 1; }
  int number() const { return rank() < operation().peer ? rank() : rank() - 1; }
  /// The slice of member `number`.
  Range slice(int number) const { return slice_of(operation().count, element(), number, others()); }
  std::size_t pieces(int number) const {
    return (slice(number).length + piece_elements_ - 1) / piece_elements_;
  }
  Task pass_on() {
    for (std::size_t i = 0; i < arrived_.size(); ++i) {
      co_await until([&] { return arrived_[i] != 0; });
      const auto range = piece_of(slice(number()), i, piece_elements_);
      for (int step = 1; step < others(); ++step) {
        const int other = (number() + step) % others();
        send(place_of(range), range.length * element(), member_of(other), Channel::results);
      }
    }
  }

  std::size_t piece_elements_;
  std::vector<std::uint8_t> arrived_;  ///< whether the piece of this rank's slice has arrived
};

/// Depends on the operation and the placement of the ranks only, which are the same on all members.
bool uses_ring(const MessageGroup& group, const Operation& operation) {
  // A ring adds partial sums. 16-bit ones would be rounded at every rank, and the average of
  // integers is not a multiplication by 1/N.
  const bool is_float = operation.dtype == DType::f32 || operation.dtype == DType::f64;
  const bool is_short = operation.dtype == DType::f16 || operation.dtype == DType::bf16;
  if (operation.collective != Collective::all_reduce || operation.wire || is_short) return false;
  if (operation.reduce == ReduceOp::avg && !is_float) return false;
  const auto algorithm = group.algorithm == Algorithm::automatic
                             ? cheapest(group.placement, operation.count * size_of(operation.dtype))
                             : group.algorithm;
  return algorithm == Algorithm::ring;
}

}  // namespace

std::unique_ptr<Transfer> make_transfer(const MessageGroup& group, const Operation& operation) {
  if (uses_ring(group, operation)) return make_ring_reduction(group, operation);
  if (operation.is_reduction()) return make_direct_reduction(group, operation);
  if (operation.collective == Collective::broadcast) {
    return std::make_unique<Broadcast>(group, operation);
  }
  return std::make_unique<Moves>(group, operation);
}

}  // namespace lockstep::messages
