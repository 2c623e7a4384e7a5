#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/operation.h"
#include "lockstep/types.h"

namespace lockstep::bench {

/// The collectives that are measured.
inline constexpr Collective measured[] = {Collective::all_reduce, Collective::broadcast,
                                          Collective::all_gather, Collective::reduce_scatter,
                                          Collective::barrier};

/// Whose memory the buffers are: the group's, which is exchanged in place, the rank's own, or that
/// of a device.
enum class Memory { group, own, device };

/// "group", "private" or "device".
std::string_view name(Memory memory);

/// Settings of `lockstep bench`.
struct Settings {
  Collective collective = Collective::all_reduce;
  int ranks = 2;
  bool threads = false;  ///< ranks are threads of one process, else processes
  std::size_t min_bytes = 1 << 10;
  std::size_t max_bytes = 64 << 20;
  std::size_t factor = 4;  ///< between a size and the next
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::string algorithm = {};  ///< of an all_reduce over MPI; empty takes LOCKSTEP_ALGORITHM's
  std::string interface = {};  ///< of the network; empty takes LOCKSTEP_INTERFACE's
  std::optional<DType> wire;   ///< halves that the floats of an all_reduce travel as
  std::vector<Memory> memories = {Memory::group, Memory::own};
  bool check = false;  ///< compare every result with the expected one
  std::size_t repeats =
      0;  ///< measured repetitions of a row; 0 takes as many as fit a quarter of a second
  bool json = false;
  bool stream = false;  ///< measure what a += b in all ranks at once gives, too
};

/// Throws: InvalidArgument naming the option, what it held and what was expected; also for sizes
/// that this machine's memory cannot hold.
void check(const Settings& settings);

/// The sizes to measure, ascending.
/// Units: bytes, as nccl-tests count them: the larger of a rank's input and output.
std::vector<std::size_t> sizes(const Settings& settings);

/// Elements of one part at this size: of the whole buffer for all_reduce and broadcast, of one
/// rank's part for all_gather and reduce_scatter.
std::size_t part_count(const Settings& settings, std::size_t bytes);

/// Whether a rank has an input and an output, or one buffer that is both.
bool in_place(Collective collective);

}  // namespace lockstep::bench
