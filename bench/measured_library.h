#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "bench/settings.h"
#include "comm/communicator.h"

namespace lockstep::bench {

/// The measured library: Lockstep, or a peer that does the same work. Every call blocks until this
/// rank is done. Shapes are those of Communicator.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;
  /// Whether a rank that waits leaves its core to others after a while.
  virtual bool sleeps_while_waiting() const { return true; }
  /// Memory of that kind, without page faults left in it.
  virtual std::shared_ptr<std::byte> allocate(Memory memory, std::size_t bytes) = 0;

  virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) = 0;
  /// Floats, in the wire dtype.
  virtual void all_reduce(void* data, std::size_t count, ReduceOp op, const Wire& wire) = 0;
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root) = 0;
  virtual void all_gather(const void* input, void* output, std::size_t count, DType dtype) = 0;
  virtual void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                              ReduceOp op) = 0;
  virtual void barrier() = 0;
};

/// Ordinary memory, page-aligned and written once.
inline std::shared_ptr<std::byte> own_memory(std::size_t bytes) {
  constexpr std::align_val_t page{4096};
  auto* memory = static_cast<std::byte*>(::operator new(bytes, page));
  std::shared_ptr<std::byte> owner(memory, [](std::byte* p) { ::operator delete(p, page); });
  std::fill_n(memory, bytes, std::byte{});
  return owner;
}

/// A communicator of this library.
class CommunicatorTransport : public Transport {
 public:
  explicit CommunicatorTransport(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  std::string_view backend() const override { return communicator_->backend(); }
  std::shared_ptr<std::byte> allocate(Memory memory, std::size_t bytes) override {
    return memory == Memory::group ? communicator_->allocate(bytes) : own_memory(bytes);
  }
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override {
    communicator_->all_reduce(data, count, dtype, op).wait();
  }
  void all_reduce(void* data, std::size_t count, ReduceOp op, const Wire& wire) override {
    communicator_->all_reduce(data, count, op, wire).wait();
  }
  void broadcast(void* data, std::size_t count, DType dtype, int root) override {
    communicator_->broadcast(data, count, dtype, root).wait();
  }
  void all_gather(const void* input, void* output, std::size_t count, DType dtype) override {
    communicator_->all_gather(input, output, count, dtype).wait();
  }
  void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                      ReduceOp op) override {
    communicator_->reduce_scatter(input, output, count, dtype, op).wait();
  }
  void barrier() override { communicator_->barrier().wait(); }

 private:
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace lockstep::bench
