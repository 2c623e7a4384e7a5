#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

namespace {

/// A rank's message to the others: the length of its error's text, and its type.
struct Notice {
  std::int64_t length = 0;
  std::int64_t type = 0;
};

std::int64_t type_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return 1;
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return 2;
  if (dynamic_cast<const DataError*>(&error) != nullptr) return 3;
  return 0;
}

[[noreturn]] void raise(std::int64_t type, const std::string& text, int origin) {
  if (type == 1) throw InvalidArgument(text, origin);
  if (type == 2) throw CheckpointError(text, origin);
  if (type == 3) throw DataError(text, origin);
  throw Error(text, origin);
}

at::Tensor bytes_of(std::int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

void all_or_none(const Group& group, const std::function<void()>& fn) {
  std::exception_ptr error;
  std::string text;
  Notice own;
  try {
    fn();
  } catch (const std::exception& caught) {
    error = std::current_exception();
    text = *caught.what() != '\0' ? caught.what() : "unknown error";
    own = {.length = static_cast<std::int64_t>(text.size()), .type = type_of(caught)};
  }

  const at::Tensor mine = bytes_of(sizeof(Notice));
  std::memcpy(mine.mutable_data_ptr(), &own, sizeof(Notice));
  const at::Tensor all = bytes_of(group.size() * static_cast<std::int64_t>(sizeof(Notice)));
  group.all_gather(all, mine).wait();
  const auto* const begin = static_cast<const Notice*>(all.const_data_ptr());
  const auto* const end = begin + group.size();
  const auto* const first =
      std::find_if(begin, end, [](const Notice& notice) { return notice.length > 0; });
  if (first == end) return;

  const int rank = static_cast<int>(first - begin);
  const at::Tensor letters = bytes_of(first->length);
  if (rank == group.rank()) std::memcpy(letters.mutable_data_ptr(), text.data(), text.size());
  group.broadcast(letters, rank).wait();
  if (error) std::rethrow_exception(error);
  raise(first->type,
        detail::concat("rank ", rank, ": ",
                       std::string_view(static_cast<const char*>(letters.const_data_ptr()),
                                        static_cast<std::size_t>(first->length))),
        group.communicator().world_rank(rank));
}

}  // namespace lockstep
