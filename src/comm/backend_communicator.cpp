#include "comm/backend_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "comm/announcement.h"
#include "comm/flight/flight_recorder.h"
#include "comm/rank_context.h"
#include "core/failure.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

BackendRequest::BackendRequest(std::shared_ptr<BackendCommunicator> group, RankContext& context,
                               Operation&& operation)
    : group_(std::move(group)), context_(context), operation_(std::move(operation)) {
  if (context_.has_thread()) interval_.begun = std::chrono::steady_clock::now();
  // Operations that create a group are not issued by issue(), which calls record().
  if (operation_.sequence == 0) record();
}

void BackendRequest::record() noexcept {
  auto* recorder = context_.recorder();
  if (recorder == nullptr) return;
  const int peer = operation_.peer < 0 ? -1 : group_->world_rank(operation_.peer);
  const auto number =
      recorder->issued(group_->recorded_group(), operation_, peer,
                       operation_.part(group_->rank()) * size_of(operation_.wire_dtype()));
  recorded_.store(number, std::memory_order_relaxed);
  // The progress thread may complete the operation at this moment; one of both sees the other.
  if (context_.has_thread()) std::atomic_thread_fence(std::memory_order_seq_cst);
  if (complete()) recorder->ended(number);
}

BackendRequest::~BackendRequest() = default;

std::string BackendRequest::where() const { return group_->where(operation_.label()); }

void BackendRequest::set_complete() {
  if (context_.has_thread()) interval_.complete = std::chrono::steady_clock::now();
  complete_.store(true, std::memory_order_release);
  if (context_.has_thread()) std::atomic_thread_fence(std::memory_order_seq_cst);
  if (const auto number = recorded(); number != 0) context_.recorder()->ended(number);
}

std::string BackendRequest::of_group() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < group_->size(); ++rank) ranks.push_back(group_->world_rank(rank));
  return detail::of_group(group_->group_number(), ranks);
}

bool BackendRequest::cancel() {
  if (operation_.collective != Collective::recv || complete()) return false;
  const RankContext::CallGuard guard(context_);
  if (context_.failed()) context_.throw_failure(where());
  if (complete() || !withdraw()) return false;
  set_source(any_source);
  set_complete();
  return true;
}

bool BackendRequest::test() {
  if (complete()) return true;
  const RankContext::CallGuard guard(context_);
  return context_.finished(*this);
}

void BackendRequest::wait() {
  // With a progress thread, this call also enters the context, which releases the operations that
  // the thread completed.
  if (complete() && !context_.has_thread()) return;
  const RankContext::CallGuard guard(context_);
  context_.wait(*this);
}

void BackendRequest::check() {
  if (complete()) return;
  const RankContext::CallGuard guard(context_);
  context_.check(*this);
}

void BackendRequest::check_time(std::chrono::nanoseconds waited) {
  const RankContext::CallGuard guard(context_);
  if (!complete()) context_.check_time(*this, waited);
}

void BackendRequest::abandon() noexcept {
  if (complete()) return;
  context_.abandon(*group_, concat(operation_.label(),
                                   " was abandoned: an exception left the scope of its Work"));
}

void BackendCommunicator::record_in(FlightRecorder& recorder) {
  std::vector<int> members;
  for (int rank = 0; rank < size(); ++rank) members.push_back(world_rank(rank));
  recorded_group_ = recorder.add_group(members);
}

void BackendCommunicator::fail(std::string_view cause) noexcept {
  fail_with(context().failure_of_program(Failure::Kind::error, without_backtrace(cause)));
}

void BackendCommunicator::fail_with(const Failure& failure) noexcept {
  context().fail(failure);
  if (auto* recorder = context().recorder()) recorder->fail(failure.text, failure.rank);
}

void BackendCommunicator::make_progress() {
  auto& context = this->context();
  const RankContext::CallGuard guard(context);
  context.poll();
  if (context.failed()) context.throw_failure(where("world"));
}

void BackendCommunicator::count_step() noexcept {
  if (auto* recorder = context().recorder()) recorder->count_step();
}

std::vector<SplitChoice> exchange_choices(Communicator& group, const SplitChoice& mine) {
  constexpr std::size_t words = sizeof(SplitChoice) / sizeof(std::int64_t);
  static_assert(sizeof(SplitChoice) == words * sizeof(std::int64_t));
  std::vector<SplitChoice> choices(static_cast<std::size_t>(group.size()));
  group.all_gather(&mine, choices.data(), words, DType::i64).wait();
  return choices;
}

NumberedSplit split_numbered(Communicator& group, int color, int key, std::int64_t last_number) {
  const auto choices = exchange_choices(group, {.color = color, .key = key, .own = last_number});
  NumberedSplit part{.number = 0, .ranks = {}};
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    part.number = std::max(part.number, choices[rank].own + 1);
    if (color >= 0 && choices[rank].color == color) part.ranks.push_back(static_cast<int>(rank));
  }
  std::ranges::stable_sort(part.ranks, {},
                           [&](int rank) { return choices[static_cast<std::size_t>(rank)].key; });
  return part;
}

int agree_on_number(Communicator& group, int last_number) {
  std::int64_t number = last_number + 1;
  group
      .all_reduce(&number, 1, DType::i64, ReduceOp::max,
                  {.source = {.content = Source::Content::group_number}})
      .wait();
  return static_cast<int>(number);
}

std::vector<int> at_ranks(std::span<const int> members, std::span<const int> ranks) {
  std::vector<int> found;
  for (const int rank : ranks) found.push_back(members[static_cast<std::size_t>(rank)]);
  return found;
}

std::shared_ptr<std::byte> take_private_memory(std::size_t bytes, std::string_view backend) {
  constexpr std::size_t alignment = 64;
  constexpr double mib = 1024.0 * 1024.0;
  const auto machine = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::size_t>(::sysconf(_SC_PAGE_SIZE));
  void* memory = nullptr;
  if (bytes < machine) {
    const std::size_t whole = (bytes + alignment) / alignment * alignment;
    memory = std::aligned_alloc(alignment, whole);
  }
  if (memory == nullptr) {
    throw CommError(concat(backend, ": cannot allocate ", static_cast<double>(bytes) / mib,
                           " MiB of memory; this machine has ", static_cast<double>(machine) / mib,
                           " MiB"));
  }
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), [](std::byte* taken) { std::free(taken); }};
}

}  // namespace lockstep::detail
