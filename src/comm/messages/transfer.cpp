#include "comm/messages/transfer.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>

namespace lockstep::inline v0_2::messages {

Transfer::Transfer(GroupTransport transport, const Operation& operation)
    : transport_(transport), operation_(operation) {
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
  if (done) transport_.send(data, bytes, member, channel, std::move(done));
}

void Transfer::receive(std::byte* data, std::size_t bytes, int member, Channel channel,
                       std::uint8_t* flag) {
  auto done = count(bytes, member, flag);
  if (done) transport_.receive(data, bytes, member, channel, std::move(done));
}

namespace {

/// Depends on the operation and the placement of the ranks only, which are the same on all members.
Algorithm chosen(const MessageGroup& group, const Operation& operation) {
  if (!allows_partial_sums(operation)) return Algorithm::direct;
  if (group.algorithm != Algorithm::automatic) return group.algorithm;
  return cheapest(group.placement, operation.count * size_of(operation.dtype));
}

}  // namespace

std::unique_ptr<Transfer> make_transfer(GroupTransport transport, const Operation& operation) {
  switch (operation.collective) {
    case Collective::broadcast:
      return make_broadcast(transport, operation);
    case Collective::reduce_scatter:
    case Collective::reduce:
      return make_direct_reduction(transport, operation);
    case Collective::all_reduce:
      return chosen(transport.group(), operation) == Algorithm::ring
                 ? make_ring_reduction(transport, operation)
                 : make_direct_reduction(transport, operation);
    default:
      return make_moves(transport, operation);
  }
}

namespace {

using detail::Task;
using detail::until;

/// Parts are sent in pieces or whole (Pieces::of_parts).
class Moves final : public Transfer {
 public:
  Moves(GroupTransport transport, const Operation& operation);

 private:
  bool sends_to(int member) const;
  bool receives_from(int member) const;
  std::byte* place_of(int source) const;
  /// Begins the message of a piece: its first byte in the part, its length, and the flag that
  /// becomes 1 when the message is complete.
  using Begin = std::function<void(std::size_t at, std::size_t bytes, std::uint8_t* done)>;
  /// Sends or receives a part in pieces. window: pieces in transit at the same time.
  Task in_pieces(std::size_t bytes, std::size_t window, Begin begin);

  /// For each part, whether the pieces in transit are complete, in turn.
  std::deque<std::vector<std::uint8_t>> in_transit_;
  detail::Shape shape_;
};

Moves::Moves(GroupTransport transport, const Operation& operation)
    : Transfer(transport, operation), shape_(this->operation(), size(), rank()) {
  const std::byte* input = operation.input;
  const bool parted = shape_.parts() > 1;
  // MPI may copy the pieces that are sent. More receives than sends, so that pieces find their
  // receive also after this rank was late.
  constexpr std::size_t most_sent = 16 << 20;
  const auto others = std::max<std::size_t>(static_cast<std::size_t>(size()) - 1, 1);
  const auto to_send =
      std::clamp<std::size_t>(most_sent / pieces().bytes / others, 2, pieces().window);
  const auto to_receive = 4 * to_send;
  // Each rank begins with its neighbours, so that not all ranks send to the same member at the same
  // time.
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const int target = (rank() + step) % size();
    if (receives_from(source)) {
      run(in_pieces(shape_.length(source, rank()) * element(), to_receive,
                    [=, this, part = place_of(source)](auto at, auto bytes, auto* done) {
                      receive(part + at, bytes, source, Channel::parts, done);
                    }));
    }
    if (sends_to(target)) {
      const std::size_t begin = parted ? shape_.begin(target) : 0;
      run(in_pieces(shape_.length(rank(), target) * element(), to_send,
                    [=, this, part = input + begin * element()](auto at, auto bytes, auto* done) {
                      send(part + at, bytes, target, Channel::parts, done);
                    }));
    }
  }
  if (receives_from(rank())) {
    // In an in-place operation, a rank's own part may already be at its destination.
    const std::size_t begin = parted ? shape_.begin(rank()) : 0;
    const std::size_t bytes = shape_.length(rank(), rank()) * element();
    if (bytes > 0) std::memmove(place_of(rank()), input + begin * element(), bytes);
  }
}

Task Moves::in_pieces(std::size_t bytes, std::size_t window, Begin begin) {
  auto& done = in_transit_.emplace_back(window, std::uint8_t{1});
  const std::size_t piece = pieces().of_parts ? pieces().bytes : bytes;
  for (std::size_t at = 0; at < bytes; at += piece) {
    auto& before = done[at / piece % window];
    co_await until([&] { return before != 0; });
    before = 0;
    begin(at, std::min(piece, bytes - at), &before);
  }
}

bool Moves::sends_to(int member) const {
  return shape_.is_source(rank()) &&
         (operation().collective != Collective::gather || member == operation().peer);
}

bool Moves::receives_from(int member) const {
  return shape_.is_source(member) &&
         (operation().collective != Collective::gather || rank() == operation().peer);
}

std::byte* Moves::place_of(int source) const {
  if (operation().collective == Collective::scatter) return operation().output;
  return operation().output + operation().received_begin(source) * element();
}

}  // namespace

std::unique_ptr<Transfer> make_moves(GroupTransport transport, const Operation& operation) {
  return std::make_unique<Moves>(transport, operation);
}

namespace {

/// The members except root are numbered from 0, and each has a slice. It receives its slice from
/// root in pieces, and sends each piece on to the others.
class Broadcast final : public Transfer {
 public:
  Broadcast(GroupTransport transport, const Operation& operation);

 private:
  int others() const { return size() - 1; }
  int member_of(int number) const { return number < operation().peer ? number : number + 1; }
  int number() const { return rank() < operation().peer ? rank() : rank() - 1; }
  /// A piece of the slice of member `number`.
  Range piece(int number, std::size_t index) const;
  std::size_t pieces(int number) const;
  std::byte* at(Range piece) const { return operation().output + piece.begin * element(); }
  Task pass_on();

  std::size_t piece_elements_;
  std::vector<std::uint8_t> arrived_;  ///< whether the piece of this rank's slice has arrived
};

/// Short, so that a piece is sent on while the next one is received; long, so that there are few
/// pieces.
constexpr std::size_t piece_bytes = 1 << 20;
constexpr std::size_t most_pieces = 256;

Broadcast::Broadcast(GroupTransport transport, const Operation& operation)
    : Transfer(transport, operation) {
  const std::size_t slice = slice_of(operation.count, element(), 0, others()).length;
  piece_elements_ = std::max({piece_bytes / element(), (slice + most_pieces - 1) / most_pieces});
  const auto each_piece = [&](int of, const auto& begin) {
    for (std::size_t i = 0; i < pieces(of); ++i) begin(i, piece(of, i));
  };
  if (rank() == operation.peer) {
    for (int other = 0; other < others(); ++other) {
      each_piece(other, [&](std::size_t, Range range) {
        send(at(range), range.length * element(), member_of(other), Channel::parts);
      });
    }
    return;
  }
  arrived_.resize(pieces(number()));
  each_piece(number(), [&](std::size_t i, Range range) {
    receive(at(range), range.length * element(), operation.peer, Channel::parts, &arrived_[i]);
  });
  for (int other = 0; other < others(); ++other) {
    if (other == number()) continue;
    each_piece(other, [&](std::size_t, Range range) {
      receive(at(range), range.length * element(), member_of(other), Channel::results);
    });
  }
  run(pass_on());
}

std::size_t Broadcast::pieces(int number) const {
  const std::size_t length = slice_of(operation().count, element(), number, others()).length;
  return (length + piece_elements_ - 1) / piece_elements_;
}

Range Broadcast::piece(int number, std::size_t index) const {
  const auto slice = slice_of(operation().count, element(), number, others());
  const std::size_t begin = index * piece_elements_;
  return {.begin = slice.begin + begin, .length = std::min(piece_elements_, slice.length - begin)};
}

Task Broadcast::pass_on() {
  for (std::size_t i = 0; i < arrived_.size(); ++i) {
    co_await until([&] { return arrived_[i] != 0; });
    const auto range = piece(number(), i);
    for (int step = 1; step < others(); ++step) {
      const int other = (number() + step) % others();
      send(at(range), range.length * element(), member_of(other), Channel::results);
    }
  }
}

}  // namespace

std::unique_ptr<Transfer> make_broadcast(GroupTransport transport, const Operation& operation) {
  return std::make_unique<Broadcast>(transport, operation);
}

}  // namespace lockstep::messages
