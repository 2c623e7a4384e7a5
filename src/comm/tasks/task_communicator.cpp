#include "comm/tasks/task_communicator.h"

#include <exception>

namespace lockstep::inline v0_2::detail {

void TaskRequest::advance() {
  if (complete()) return;
  if (task_.advance()) context().set_advanced();
  worked_ = task_.worked();
  if (!task_.finished()) return;
  task_ = {};  // with memory that it uses; it is not the program's
  set_complete();
}

std::vector<int> TaskRequest::missing() const {
  const auto* work = awaited_work();
  return work != nullptr ? work->missing() : group().first_missing();
}

std::string TaskRequest::note() const {
  const auto* work = awaited_work();
  return work != nullptr ? note_of(*work) : std::string();
}

bool TaskRequest::withdraw() {
  // A receive awaits one operation.
  auto* work = task_.work();
  if (work != nullptr && !context().or_fail<std::exception>([&] { return work->cancel(); })) {
    return false;
  }
  task_ = {};
  return true;
}

void TaskCommunicator::poll() {
  for (const auto& request : requests_) request->advance();
}

void TaskCommunicator::check_requests() {
  for (const auto& request : requests_) {
    if (!request->complete()) check(*request);
  }
}

void TaskCommunicator::check(const TaskRequest& request) {
  if (auto* work = request.awaited_work()) work->check();
}

std::vector<int> TaskCommunicator::first_missing() const {
  for (const auto& request : requests_) {
    if (request->awaited_work() != nullptr) return request->missing();
  }
  return {};
}

std::shared_ptr<TaskRequest> TaskCommunicator::begin_task(
    Operation&& operation, const std::function<Task(TaskRequest&)>& start) {
  const RankContext::CallGuard guard(*context_);
  number(operation);
  if (context_->failed()) context_->throw_failure(where(operation.label()));
  operation.group = group_number();
  auto request = std::make_shared<TaskRequest>(*this, std::move(operation));
  context_->or_fail<std::exception>([&] { request->set_task(start(*request)); });
  requests_.push_back(request);
  context_->poll();
  if (!request->complete()) context_->wake_thread();
  return request;
}

void ComposedRankContext::fail(const Failure& failure) noexcept {
  set_failure_raised();
  record(failure);
}

void ComposedRankContext::check_requests() {
  for (auto* group : groups()) static_cast<TaskCommunicator*>(group)->check_requests();
}

void ComposedRankContext::record(const Failure& failure) noexcept {
  if (in_child()) return;
  // The worlds must fail first. When the failure is recorded here, this rank's operations are
  // abandoned, which would otherwise become the first failure of those worlds.
  const std::lock_guard lock(record_mutex_);
  if (failed()) return;
  for (const auto& world : worlds_) world->fail_with(failure);
  RankContext::record(failure);
}

}  // namespace lockstep::detail
