// A convolutional network on MNIST, on any number of ranks. Without WITH_LOCKSTEP, the program
// averages gradients itself, over MPI.
//
//   dist_mnist_after DIR     DIR has MNIST's uncompressed files
#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#ifdef WITH_LOCKSTEP
#include <lockstep/lockstep.h>
#else
#include <mpi.h>
#endif

namespace nn = torch::nn;

constexpr std::int64_t global_batch = 60;
constexpr int steps = 60;

/// The bytes of one of MNIST's files, without its header.
torch::Tensor read_bytes(const std::string& path, std::size_t header) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be read");
  const std::string all(std::istreambuf_iterator<char>(in), {});
  const auto size = static_cast<std::int64_t>(all.size() - header);
  return torch::from_blob(const_cast<char*>(all.data() + header), {size}, torch::kByte).clone();
}

struct Digits : torch::data::datasets::Dataset<Digits> {
  explicit Digits(const std::string& folder)
      : images(read_bytes(folder + "/train-images-idx3-ubyte", 16).view({-1, 1, 28, 28})),
        labels(read_bytes(folder + "/train-labels-idx1-ubyte", 8).to(torch::kLong)) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {(images[i].to(torch::kFloat) / 255 - 0.1307) / 0.3081, labels[i]};
  }
  torch::optional<std::size_t> size() const override { return labels.numel(); }

  torch::Tensor images;
  torch::Tensor labels;
};

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return torch::log_softmax(linear2(torch::relu(linear1(x.flatten(1)))), 1);
  }

  nn::Conv2d conv1{nn::Conv2dOptions(1, 8, 5)};
  nn::Conv2d conv2{nn::Conv2dOptions(8, 16, 5)};
  nn::Linear linear1{256, 50};
  nn::Linear linear2{50, 10};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
#ifdef WITH_LOCKSTEP
  const auto world = lockstep::init();
  const int rank = world.rank();
  const int ranks = world.size();
#else
  int rank = 0;
  int ranks = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#endif
  torch::manual_seed(0);
  Digits data(argc > 1 ? argv[1] : "mnist");
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
#ifdef WITH_LOCKSTEP
  lockstep::DistributedDataParallel ddp(net, world);
  lockstep::DistributedSampler sampler(data.size().value(), world, {.shuffle = false});
#else
  torch::data::samplers::DistributedSequentialSampler sampler(data.size().value(), ranks, rank);
#endif
  auto loader = torch::data::make_data_loader(data.map(torch::data::transforms::Stack<>()), sampler,
                                              static_cast<std::size_t>(global_batch / ranks));

  int step = 0;
  for (auto& batch : *loader) {
    sgd.zero_grad();
#ifdef WITH_LOCKSTEP
    auto output = ddp(batch.data);
#else
    auto output = net(batch.data);
#endif
    auto loss = torch::nll_loss(output, batch.target);
    loss.backward();
#ifndef WITH_LOCKSTEP
    for (auto& parameter : net->parameters()) {
      auto gradient = parameter.grad();
      MPI_Allreduce(MPI_IN_PLACE, gradient.data_ptr<float>(), static_cast<int>(gradient.numel()),
                    MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      gradient.div_(ranks);
    }
#endif
    sgd.step();

    auto mean = loss.item<double>();
#ifdef WITH_LOCKSTEP
    mean = world.mean(mean);
#else
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    mean /= ranks;
#endif
    if (rank == 0)
      std::cout << "step " << step << " loss " << std::setprecision(9) << mean << std::endl;
    if (++step == steps) break;
  }
  if (rank == 0) torch::save(net, "dist_mnist.pt");
#ifndef WITH_LOCKSTEP
  MPI_Finalize();
#endif
}
