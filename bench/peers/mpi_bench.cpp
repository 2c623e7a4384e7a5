// The work of `lockstep bench`, done by the MPI that this was built with.
#include <mpi.h>

#include <stdexcept>

#include "peer_main.h"

namespace lockstep::bench {
namespace {

/// Of the elements, and of what run_session() exchanges about them.
MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i64:
      return MPI_INT64_T;
    default:
      throw std::runtime_error("expected float32, float64 or int64");
  }
}

MPI_Op mpi_op(ReduceOp op) {
  if (op != ReduceOp::max && op != ReduceOp::sum) throw std::runtime_error("expected sum or max");
  return op == ReduceOp::max ? MPI_MAX : MPI_SUM;
}

class MpiTransport final : public Peer {
 public:
  MpiTransport() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override {
#ifdef OMPI_MAJOR_VERSION
    return "openmpi";
#else
    return "mpi";
#endif
  }
  using Peer::all_reduce;
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), mpi_type(dtype), mpi_op(op),
                  MPI_COMM_WORLD);
  }
  void broadcast(void* data, std::size_t count, DType dtype, int root) override {
    MPI_Bcast(data, static_cast<int>(count), mpi_type(dtype), root, MPI_COMM_WORLD);
  }
  void all_gather(const void* input, void* output, std::size_t count, DType dtype) override {
    MPI_Allgather(input, static_cast<int>(count), mpi_type(dtype), output, static_cast<int>(count),
                  mpi_type(dtype), MPI_COMM_WORLD);
  }
  void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                      ReduceOp op) override {
    MPI_Reduce_scatter_block(input, output, static_cast<int>(count), mpi_type(dtype), mpi_op(op),
                             MPI_COMM_WORLD);
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::peer_program<lockstep::bench::MpiTransport>(argc, argv);
}
