#include "lockstep/parallel/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::detail {
namespace {

/// Lies in front of the bytes.
struct alignas(64) Header {
  std::atomic<int> users;  ///< ranks that have not let go of it
};

struct Owned {
  std::shared_ptr<std::byte> memory;
  const Header* header;
};

/// What this rank owns and others still use. Looked through when more is shared; whatever is left
/// goes with the rank, whose heap nobody allocates from any more.
thread_local std::vector<Owned> let_go;

/// One rank's hold on it.
class Hold {
 public:
  Hold(const Group& group, Header& header, std::shared_ptr<std::byte> owned)
      : group_(group), header_(header), owned_(std::move(owned)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  ~Hold() {
    const bool is_last = header_.users.fetch_sub(1) == 1;
    if (owned_ && !is_last) let_go.push_back({std::move(owned_), &header_});
  }

 private:
  Group group_;  ///< keeps the world's memory
  Header& header_;
  std::shared_ptr<std::byte> owned_;  ///< rank 0's
};

}  // namespace

bool shares_memory(const Group& group) {
  const auto byte = group.communicator().allocate(1);
  return group.communicator().place_of(byte.get()).has_value();
}

at::Tensor shared_memory(const Group& group, std::size_t bytes) {
  std::erase_if(let_go, [](const Owned& owned) { return owned.header->users.load() == 0; });
  auto& communicator = group.communicator();
  std::shared_ptr<std::byte> owned;
  std::int64_t place = 0;
  if (group.rank() == 0) {
    owned = communicator.allocate(sizeof(Header) + bytes);
    new (owned.get()) Header{.users = group.size()};
    place = static_cast<std::int64_t>(*communicator.place_of(owned.get()));
  }
  communicator.broadcast(&place, 1, DType::i64, 0).wait();
  auto* memory = communicator.at_place(static_cast<std::uint64_t>(place));
  auto hold = std::make_shared<Hold>(group, *reinterpret_cast<Header*>(memory), std::move(owned));
  return at::from_blob(
      memory + sizeof(Header), {static_cast<std::int64_t>(bytes)},
      [hold = std::move(hold)](void*) mutable { hold.reset(); }, at::kByte);
}

}  // namespace lockstep::detail
