#include "device/buffer_elements.h"

namespace lockstep::inline v0_2::device {

BufferElements buffer_elements(const Operation& operation, int rank, int size) {
  const std::size_t part = operation.part(rank);
  const std::size_t all = operation.part_begin(size);
  const bool root = operation.peer == rank;
  switch (operation.collective) {
    case Collective::barrier:
      return {};
    case Collective::all_reduce:
    case Collective::broadcast:
      return {.input = operation.count, .output = operation.count};
    case Collective::all_gather:
      return {.input = part, .output = all};
    case Collective::reduce_scatter:
      return {.input = all, .output = part};
    case Collective::gather:
      return {.input = part, .output = root ? all : 0};
    case Collective::scatter:
      return {.input = root ? all : 0, .output = part};
    case Collective::all_to_all:
      return {.input = all, .output = operation.received_begin(size)};
    case Collective::reduce:
      return {.input = operation.count, .output = root ? operation.count : 0};
    case Collective::send:
      return {.input = operation.count};
    case Collective::recv:
      return {.output = operation.count};
  }
  return {};
}

}  // namespace lockstep::device
