#include "comm/reissue.h"

namespace lockstep::inline v0_2::detail {

Work reissue(Communicator& group, const Operation& operation) {
  const auto& [collective, reduce, dtype, wire, input, output, count, counts, peer, tag, timeout,
               sequence, shape, source, owner, part_of] = operation;
  const bool varying = !counts.empty();
  Issue issue{
      .timeout = timeout, .shape = shape, .source = source, .owner = owner, .part_of = part_of};
  switch (collective) {
    case Collective::all_reduce:
      if (wire) return group.all_reduce(output, count, reduce, *wire, std::move(issue));
      return group.all_reduce(output, count, dtype, reduce, std::move(issue));
    case Collective::broadcast:
      return group.broadcast(output, count, dtype, peer, std::move(issue));
    case Collective::all_gather:
      if (varying) return group.all_gather(input, output, counts, dtype, std::move(issue));
      return group.all_gather(input, output, count, dtype, std::move(issue));
    case Collective::reduce_scatter:
      if (varying)
        return group.reduce_scatter(input, output, counts, dtype, reduce, std::move(issue));
      return group.reduce_scatter(input, output, count, dtype, reduce, std::move(issue));
    case Collective::gather:
      return group.gather(input, output, count, dtype, peer, std::move(issue));
    case Collective::scatter:
      return group.scatter(input, output, count, dtype, peer, std::move(issue));
    case Collective::all_to_all:
      return group.all_to_all(input, output, count, dtype, std::move(issue));
    case Collective::send:
      return group.send(input, count, dtype, peer, tag, std::move(issue));
    case Collective::recv:
      return group.recv(output, count, dtype, peer, tag, std::move(issue));
    case Collective::barrier:
      return group.barrier(std::move(issue));
  }
  return {};
}

}  // namespace lockstep::detail
