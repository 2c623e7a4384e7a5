#include "comm/messages/transfer.h"

#include <algorithm>
#include <cstring>

namespace lockstep::inline v0_2::messages {

Transfer::Transfer(GroupTransport transport, const Operation& operation)
    : transport_(transport), operation_(operation) {
  pending_with_.resize(static_cast<std::size_t>(size()));
}

std::vector<int> Transfer::partners() const {
  std::vector<int> members;
  for (int member = 0; member < size(); ++member) {
    if (pending_with_[static_cast<std::size_t>(member)] > 0) members.push_back(member);
  }
  return members;
}

void Transfer::on_complete(int member, std::uint8_t* flag) {
  --pending_with_[static_cast<std::size_t>(member)];
  --pending_;
  if (flag != nullptr) *flag = 1;
}

void Transfer::send(const std::byte* data, std::size_t bytes, int member, Channel channel,
                    std::uint8_t* flag) {
  ++pending_with_[static_cast<std::size_t>(member)];
  ++pending_;
  if (bytes == 0) return on_complete(member, flag);
  transport_.send(data, bytes, member, channel,
                  [this, member, flag](std::size_t) { on_complete(member, flag); });
}

void Transfer::receive(std::byte* data, std::size_t bytes, int member, Channel channel,
                       std::uint8_t* flag) {
  ++pending_with_[static_cast<std::size_t>(member)];
  ++pending_;
  if (bytes == 0) return on_complete(member, flag);
  transport_.receive(data, bytes, member, channel,
                     [this, member, flag](std::size_t) { on_complete(member, flag); });
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

/// Parts are sent in pieces or whole (Pieces::of_parts).
class Moves final : public Transfer {
 public:
  Moves(GroupTransport transport, const Operation& operation);

  void advance() override;
  bool begun() const override {
    return std::ranges::all_of(streams_, [](const Stream& stream) { return stream.begun(); });
  }

 private:
  /// The pieces of one part on their way to or from a member.
  struct Stream {
    int member;
    std::byte* received = nullptr;    ///< where the part goes; null if it is sent
    const std::byte* sent = nullptr;  ///< the part; null if it is received
    std::size_t bytes = 0;
    std::size_t piece = 0;                ///< bytes of all pieces but the last
    std::size_t next = 0;                 ///< byte at which the next piece begins
    std::vector<std::uint8_t> done = {};  ///< of the pieces in transit, in turn

    bool begun() const { return next == bytes; }
  };

  bool sends_to(int member) const;
  bool receives_from(int member) const;
  std::byte* place_of(int source) const;
  void add(Stream stream, std::size_t window);
  void advance(Stream& stream);

  detail::Shape shape_;
  std::vector<Stream> streams_;
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
  streams_.reserve(2 * static_cast<std::size_t>(size()));
  // Each rank begins with its neighbours, so that not all ranks send to the same member at the same
  // time.
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const int target = (rank() + step) % size();
    if (receives_from(source)) {
      add({.member = source,
           .received = place_of(source),
           .bytes = shape_.length(source, rank()) * element()},
          to_receive);
    }
    if (sends_to(target)) {
      const std::size_t begin = parted ? shape_.begin(target) : 0;
      add({.member = target,
           .sent = input + begin * element(),
           .bytes = shape_.length(rank(), target) * element()},
          to_send);
    }
  }
  if (receives_from(rank())) {
    // In an in-place operation, a rank's own part may already be at its destination.
    const std::size_t begin = parted ? shape_.begin(rank()) : 0;
    const std::size_t bytes = shape_.length(rank(), rank()) * element();
    if (bytes > 0) std::memmove(place_of(rank()), input + begin * element(), bytes);
  }
}

void Moves::add(Stream stream, std::size_t window) {
  stream.piece = pieces().of_parts ? pieces().bytes : stream.bytes;
  stream.done.assign(window, 1);
  streams_.push_back(std::move(stream));
  advance(streams_.back());
}

void Moves::advance() {
  for (auto& stream : streams_) advance(stream);
}

/// Begins pieces until the window is full.
void Moves::advance(Stream& stream) {
  while (!stream.begun()) {
    auto& done = stream.done[stream.next / stream.piece % stream.done.size()];
    if (done == 0) return;
    done = 0;
    const std::size_t begin = stream.next;
    const std::size_t bytes = std::min(stream.piece, stream.bytes - begin);
    stream.next += bytes;
    if (stream.received != nullptr) {
      receive(stream.received + begin, bytes, stream.member, Channel::parts, &done);
    } else {
      send(stream.sent + begin, bytes, stream.member, Channel::parts, &done);
    }
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

  void advance() override;
  bool begun() const override { return passed_on_ == pieces_; }

 private:
  int others() const { return size() - 1; }
  int member_of(int number) const { return number < operation().peer ? number : number + 1; }
  int number() const { return rank() < operation().peer ? rank() : rank() - 1; }
  /// A piece of the slice of member `number`.
  Range piece(int number, std::size_t index) const;
  std::size_t pieces(int number) const;
  std::byte* at(Range piece) const { return operation().output + piece.begin * element(); }

  std::size_t piece_elements_;
  std::size_t pieces_ = 0;             ///< pieces of this rank's slice
  std::vector<std::uint8_t> arrived_;  ///< whether the piece has arrived
  std::size_t passed_on_ = 0;
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
  pieces_ = pieces(number());
  arrived_.resize(pieces_);
  each_piece(number(), [&](std::size_t i, Range range) {
    receive(at(range), range.length * element(), operation.peer, Channel::parts, &arrived_[i]);
  });
  for (int other = 0; other < others(); ++other) {
    if (other == number()) continue;
    each_piece(other, [&](std::size_t, Range range) {
      receive(at(range), range.length * element(), member_of(other), Channel::results);
    });
  }
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

void Broadcast::advance() {
  for (; passed_on_ < pieces_ && arrived_[passed_on_] != 0; ++passed_on_) {
    const auto range = piece(number(), passed_on_);
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
