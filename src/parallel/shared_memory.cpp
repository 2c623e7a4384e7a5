#include "parallel/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Lies in front of the bytes.
struct alignas(64) Header {
  std::atomic<int> users;  ///< ranks that have not let go of it
};

struct Owned {
  std::shared_ptr<std::byte> memory;
  const Header* header;
};

/// Memory that ranks of this process own and others still use; sweep() frees it after its last use.
/// Never destroyed, since tensors may outlive any static object.
struct LetGo {
  std::mutex mutex;
  std::vector<Owned> memory;

  static LetGo& get() {
    static auto* all = new LetGo;
    return *all;
  }
  void add(Owned owned) {
    const std::lock_guard lock(mutex);
    memory.push_back(std::move(owned));
  }
  void sweep() {
    const std::lock_guard lock(mutex);
    std::erase_if(memory, [](const Owned& owned) { return owned.header->users.load() == 0; });
  }
};

/// One rank's hold on it.
class Hold {
 public:
  Hold(const Group& group, Header& header, std::shared_ptr<std::byte> owned)
      : group_(group), header_(header), owned_(std::move(owned)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  ~Hold() {
    const bool is_last = header_.users.fetch_sub(1) == 1;
    if (owned_ && !is_last) {
      LetGo::get().add({std::move(owned_), &header_});
    }
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
  LetGo::get().sweep();
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
