#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline v0_2 {

/// Which part of a program issues an operation. Ranks compare it together with the operation, so
/// that operations of equal size that different parts issue are not mistaken for one another.
struct Source {
  enum class Owner : std::uint8_t { none, distributed_data_parallel, distributed_optimizer };
  enum class Content : std::uint8_t {
    unspecified,
    gradients,
    parameters,
    buffers,
    step_agreement,  ///< whether gradients are exchanged before a step
    participation,   ///< which parameters took part in a backward
    bucket_order,    ///< in which buckets are exchanged from now on
    weights,         ///< of ranks with unequal parts
    model            ///< the check and the broadcast at construction
  };

  Owner owner = Owner::none;
  Content content = Content::unspecified;
  std::uint16_t number = 0;  ///< of the owner in its group: Communicator::number_owner()
  std::int32_t bucket = -1;  ///< of gradients or parameters; -1 for none

  bool operator==(const Source&) const = default;
};

/// "bucket 0 of the gradients of DistributedDataParallel #2"; empty for no source.
std::string to_text(const Source& source);

}  // namespace lockstep
