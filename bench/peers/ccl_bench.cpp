// The work of `lockstep bench` by oneCCL on processors, bootstrapped over MPI.
#include <mpi.h>

#include <oneapi/ccl.hpp>
#include <stdexcept>
#include <vector>

#include "peer_main.h"

namespace lockstep::bench {
namespace {

/// Of the elements, and of what run_session() exchanges about them.
ccl::datatype ccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ccl::datatype::float32;
    case DType::f64:
      return ccl::datatype::float64;
    case DType::i64:
      return ccl::datatype::int64;
    default:
      throw std::runtime_error("expected float32, float64 or int64");
  }
}

ccl::reduction ccl_op(ReduceOp op) {
  if (op != ReduceOp::max && op != ReduceOp::sum) throw std::runtime_error("expected sum or max");
  return op == ReduceOp::max ? ccl::reduction::max : ccl::reduction::sum;
}

ccl::communicator world() {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  ccl::kvs::address_type address{};
  ccl::shared_ptr_class<ccl::kvs> store;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  return ccl::create_communicator(size, rank, store);
}

class CclTransport final : public Peer {
 public:
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::string_view backend() const override { return "oneccl"; }
  using Peer::all_reduce;
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override {
    ccl::allreduce(data, data, count, ccl_type(dtype), ccl_op(op), world_).wait();
  }
  void broadcast(void* data, std::size_t count, DType dtype, int root) override {
    ccl::broadcast(data, count, ccl_type(dtype), root, world_).wait();
  }
  void all_gather(const void* input, void* output, std::size_t count, DType dtype) override {
    const std::vector<std::size_t> counts(static_cast<std::size_t>(world_.size()), count);
    ccl::allgatherv(input, count, output, counts, ccl_type(dtype), world_).wait();
  }
  void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                      ReduceOp op) override {
    ccl::reduce_scatter(input, output, count, ccl_type(dtype), ccl_op(op), world_).wait();
  }
  void barrier() override { ccl::barrier(world_).wait(); }

 private:
  ccl::communicator world_ = world();
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  ccl::init();
  return lockstep::bench::peer_program<lockstep::bench::CclTransport>(argc, argv);
}
