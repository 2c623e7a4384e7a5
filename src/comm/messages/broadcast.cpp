#include <algorithm>

#include "comm/messages/transfer.h"

namespace lockstep::inline v0_2::messages {
namespace {

/// The members but root, numbered from 0, each have a slice of their own: they get it from root
/// piece by piece and pass each piece on to the others.
class Broadcast final : public Transfer {
 public:
  Broadcast(GroupTransport transport, const Operation& operation);

  void advance() override;
  bool begun() const override { return passed_on_ == pieces_; }

 private:
  int others() const { return size() - 1; }
  int member_of(int number) const { return number < operation().peer ? number : number + 1; }
  int number() const { return rank() < operation().peer ? rank() : rank() - 1; }
  /// Of the number's slice.
  Range piece(int number, std::size_t index) const;
  std::size_t pieces(int number) const;
  std::byte* at(Range piece) const { return operation().output + piece.begin * element(); }

  std::size_t piece_elements_;
  std::size_t pieces_ = 0;          ///< of this rank's slice
  std::vector<std::uint8_t> here_;  ///< of these
  std::size_t passed_on_ = 0;
};

/// Short enough to be passed on while the next comes, long enough not to be many.
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
  here_.resize(pieces_);
  each_piece(number(), [&](std::size_t i, Range range) {
    receive(at(range), range.length * element(), operation.peer, Channel::parts, &here_[i]);
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
  for (; passed_on_ < pieces_ && here_[passed_on_] != 0; ++passed_on_) {
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
