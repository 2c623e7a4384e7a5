// The work of `lockstep bench`, done by the MPI that this was built with: same buffers, same clock,
// same checks.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <stdexcept>
#include <string>

#include "bench/session.h"
#include "bench/settings.h"
#include "bench/transport.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {
namespace {

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i8:
      return MPI_INT8_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::i64:
      return MPI_INT64_T;
    default:
      throw std::runtime_error("mpi_bench: MPI has no type for halves");
  }
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::product:
      return MPI_PROD;
    default:
      throw std::runtime_error("mpi_bench: MPI has no average");
  }
}

class MpiTransport final : public Transport {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override {
#ifdef OMPI_MAJOR_VERSION
    return "openmpi";
#else
    return "mpi";
#endif
  }
  bool sleeps_while_waiting() const override { return false; }
  std::shared_ptr<std::byte> allocate(Memory, std::size_t bytes) override {
    return own_memory(bytes);
  }
  void all_reduce(void*, std::size_t, ReduceOp, const Wire&) override {
    throw InvalidArgument("bench_mpi: MPI reduces floats as they are, got a wire");
  }
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

  MpiTransport() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

 private:
  int rank_ = 0;
  int size_ = 0;
};

constexpr Collective collectives[] = {Collective::all_reduce, Collective::broadcast,
                                      Collective::all_gather, Collective::reduce_scatter,
                                      Collective::barrier};

int run(int argc, char** argv) {
  Settings settings;
  settings.json = true;
  settings.memories = {Memory::own};
  std::string collective;
  CLI::App app{"The collectives of lockstep bench through MPI, as JSON objects"};
  app.add_option("collective", collective)->required();
  app.add_option("--min", settings.min_bytes)->transform(CLI::AsSizeValue(true));
  app.add_option("--max", settings.max_bytes)->transform(CLI::AsSizeValue(true));
  app.add_option("--factor", settings.factor);
  app.add_option("--repeats", settings.repeats);
  app.add_flag("--check", settings.check);
  CLI11_PARSE(app, argc, argv);
  bool known = false;
  for (const Collective one : collectives) {
    if (name(one) != collective) continue;
    settings.collective = one;
    known = true;
  }
  if (!known) throw std::runtime_error("mpi_bench: unknown collective " + collective);
  MpiTransport transport;
  settings.ranks = transport.size();
  check(settings);
  run_session(transport, settings, std::cout);
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int result = 1;
  try {
    result = lockstep::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return result;
}
