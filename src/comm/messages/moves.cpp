#include <cstring>

#include "comm/messages/transfer.h"

namespace lockstep::inline v0_2::messages {
namespace {

class Moves final : public Transfer {
 public:
  Moves(GroupTransport transport, const Operation& operation);

  void advance() override {}
  bool begun() const override { return true; }

 private:
  bool sends_to(int member) const;
  bool receives_from(int member) const;
  std::byte* place_of(int source) const;

  detail::Shape shape_;
};

Moves::Moves(GroupTransport transport, const Operation& operation)
    : Transfer(transport, operation), shape_(this->operation(), size()) {
  const std::byte* input = operation.input;
  const bool parted = shape_.parts() > 1;
  // Each begins with its neighbours, so that not all speak to the same member at once.
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const int target = (rank() + step) % size();
    if (receives_from(source)) {
      receive(place_of(source), shape_.length(source, rank()) * element(), source, Channel::parts);
    }
    if (sends_to(target)) {
      const std::size_t begin = parted ? shape_.begin(target) : 0;
      send(input + begin * element(), shape_.length(rank(), target) * element(), target,
           Channel::parts);
    }
  }
  if (receives_from(rank())) {
    // In place, a rank's own part may already lie where it belongs.
    const std::size_t begin = parted ? shape_.begin(rank()) : 0;
    const std::size_t bytes = shape_.length(rank(), rank()) * element();
    if (bytes > 0) std::memmove(place_of(rank()), input + begin * element(), bytes);
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
  return operation().output + operation().part_begin(source) * element();
}

}  // namespace

std::unique_ptr<Transfer> make_moves(GroupTransport transport, const Operation& operation) {
  return std::make_unique<Moves>(transport, operation);
}

}  // namespace lockstep::messages
