#include "averaging/buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::inline v0_2::averaging {
namespace {

Issue issue_of(const Buffer& input, const Buffer& output) {
  return {.owner = std::make_shared<std::pair<Buffer, Buffer>>(input, output)};
}

}  // namespace

Buffer::Buffer(Communicator& group, std::size_t bytes)
    : memory_(group.allocate(std::max<std::size_t>(bytes, 1))), bytes_(bytes) {}

void Buffer::fill_with_zeros() const {
  if (bytes_ > 0) std::memset(memory_.get(), 0, bytes_);
}

Work all_gather(Communicator& group, const Buffer& output, const Buffer& input) {
  return group.all_gather(input.data(), output.data(), input.bytes(), DType::u8,
                          issue_of(input, output));
}

Work all_gather(Communicator& group, const Buffer& output, const Buffer& input,
                std::span<const std::size_t> bytes) {
  return group.all_gather(input.data(), output.data(), bytes, DType::u8, issue_of(input, output));
}

Work all_to_all(Communicator& group, const Buffer& output, const Buffer& input) {
  return group.all_to_all(input.data(), output.data(),
                          input.bytes() / static_cast<std::size_t>(group.size()), DType::u8,
                          issue_of(input, output));
}

}  // namespace lockstep::averaging
