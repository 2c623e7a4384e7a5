#include "tests/adapter/memory_backend.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace lockstep::testing {

MemoryWork::MemoryWork(std::shared_ptr<Mailboxes> boxes, Mailboxes::Place place, int peer,
                       at::Tensor tensor, bool sends)
    : boxes_(std::move(boxes)), place_(place), peer_(peer), tensor_(std::move(tensor)) {
  if (!sends) return;
  parcel_ = std::make_shared<Mailboxes::Parcel>();
  parcel_->tensor = tensor_;
  const std::lock_guard lock(boxes_->mutex);
  boxes_->parcels[place_].push_back(parcel_);
  boxes_->changed.notify_all();
}

bool MemoryWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(boxes_->mutex);
  const auto over = [this] { return ended() || aborted_ || boxes_->closed.contains(peer_); };
  if (!boxes_->changed.wait_for(lock, timeout, over)) throw std::runtime_error("timed out");
  if (aborted_) return false;
  if (!ended()) throw std::runtime_error("connection closed by rank " + std::to_string(peer_));
  return true;
}

/// Whether it is over; takes what has come. Under the lock.
bool MemoryWork::ended() {
  if (parcel_ != nullptr) return parcel_->taken;
  auto& waiting = boxes_->parcels[place_];
  if (received_ || waiting.empty()) return received_;
  const auto& from = waiting.front()->tensor;
  if (from.nbytes() != tensor_.nbytes()) throw std::runtime_error("a message of another size");
  std::memcpy(tensor_.data_ptr(), from.data_ptr(), from.nbytes());
  waiting.front()->taken = true;
  waiting.pop_front();
  boxes_->changed.notify_all();
  return received_ = true;
}

void MemoryWork::abort() {
  take_back();
  const std::lock_guard lock(boxes_->mutex);
  aborted_ = true;
  boxes_->changed.notify_all();
}

/// Removes a message that no rank has received, so that the sender may reuse its memory.
void MemoryWork::take_back() {
  if (parcel_ == nullptr) return;
  const std::lock_guard lock(boxes_->mutex);
  std::erase(boxes_->parcels[place_], parcel_);
}

void MemoryBackend::close() {
  const std::lock_guard lock(boxes_->mutex);
  boxes_->closed.insert(getRank());
  boxes_->changed.notify_all();
}

}  // namespace lockstep::testing
