// Trains ResNet-50 on random images, as Paddle's tutorial of data-parallel training does, or on a
// folder with one subfolder of images per class:
//
//   lockstep run -n 2 resnet50
//   lockstep run -n 2 resnet50 --data flowers --weights resnet50.pt
//   lockstep run -n 2 --max-restarts 3 resnet50 --data flowers --checkpoint-dir run
//
#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <array>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "program.h"

namespace nn = torch::nn;
using nn::functional::cross_entropy;
using program::fixed;
using Batch = torch::data::Example<>;

constexpr int random_classes = 102;

nn::Conv2d convolution(int inputs, int outputs, int size, int stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

struct BottleneckImpl : nn::Module {
  BottleneckImpl(int inputs, int width, int stride)
      : conv1(register_module("conv1", convolution(inputs, width, 1, 1))),
        bn1(register_module("bn1", nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, stride))),
        bn2(register_module("bn2", nn::BatchNorm2d(width))),
        conv3(register_module("conv3", convolution(width, 4 * width, 1, 1))),
        bn3(register_module("bn3", nn::BatchNorm2d(4 * width))) {
    if (stride == 1 && inputs == 4 * width) return;
    downsample =
        nn::Sequential(convolution(inputs, 4 * width, 1, stride), nn::BatchNorm2d(4 * width));
    register_module("downsample", downsample);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::relu(bn1(conv1(x)));
    y = bn3(conv3(torch::relu(bn2(conv2(y)))));
    return torch::relu(y + (downsample ? downsample->forward(x) : x));
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

/// Parameters have the same names as in torchvision's model.
struct ResNet50 : nn::Module {
  explicit ResNet50(int classes) : fc(2048, classes) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    constexpr std::array<int, 4> depths{3, 4, 6, 3};
    int inputs = 64;
    for (std::size_t i = 0; i < depths.size(); ++i) {
      const int width = 64 << i;
      for (int block = 0; block < depths[i]; ++block) {
        layers[i]->push_back(Bottleneck(inputs, width, block == 0 && i > 0 ? 2 : 1));
        inputs = 4 * width;
      }
      register_module("layer" + std::to_string(i + 1), layers[i]);
    }
    register_module("fc", fc);
    for (const auto& module : modules(false)) {
      if (const auto* conv = module->as<nn::Conv2d>())
        nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }

  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    return fc(x.mean({2, 3}));
  }

  nn::Conv2d conv1 = convolution(3, 64, 7, 2);
  nn::BatchNorm2d bn1{64};
  std::array<nn::Sequential, 4> layers;
  nn::Linear fc;
};

/// Random images with labels from 0 to 100, which depend only on the index.
class RandomImages : public torch::data::datasets::BatchDataset<RandomImages, Batch> {
 public:
  RandomImages(std::size_t count, std::int64_t side, std::uint64_t seed)
      : count_(count), side_(side), seed_(seed) {}

  Batch get_batch(c10::ArrayRef<std::size_t> indices) override {
    const auto count = static_cast<std::int64_t>(indices.size());
    const at::Tensor images = torch::empty({count, 3, side_, side_});
    const at::Tensor labels = torch::empty({count}, torch::kLong);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t index = indices[static_cast<std::size_t>(i)];
      std::seed_seq mixed{seed_, seed_ >> 32, std::uint64_t{index}};  // uses 32 bits of each
      std::array<std::uint64_t, 2> bits{};
      mixed.generate(bits.begin(), bits.end());
      auto generator = at::make_generator<at::CPUGeneratorImpl>(bits[0] << 32 | bits[1]);
      images[i].uniform_(0, 1, generator);
      labels[i].random_(0, random_classes - 1, generator);
    }
    return {images, labels};
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
  std::int64_t side_;
  std::uint64_t seed_;
};

/// The images of a folder, or random images.
class Images : public torch::data::datasets::BatchDataset<Images, Batch> {
 public:
  explicit Images(RandomImages images) : random_(std::move(images)) {}
  explicit Images(lockstep::ImageFolder images) : folder_(std::move(images)) {}

  Batch get_batch(c10::ArrayRef<std::size_t> indices) override {
    return folder_ ? folder_->get_batch(indices) : random_->get_batch(indices);
  }
  std::optional<std::size_t> size() const override {
    return folder_ ? folder_->size() : random_->size();
  }
  int classes() const {
    return folder_ ? static_cast<int>(folder_->classes().size()) : random_classes;
  }
  void set_epoch(std::int64_t epoch) {
    if (folder_) folder_->set_epoch(static_cast<std::uint64_t>(epoch));
  }

 private:
  std::optional<RandomImages> random_;
  std::optional<lockstep::ImageFolder> folder_;
};

struct Settings {
  std::int64_t epochs = 3;
  std::size_t batch_size = 32;
  std::string data;
  std::size_t samples = 640;
  std::int64_t image_size = 224;
  double lr = 0.1;
  std::uint64_t seed = 0;
  std::size_t workers = 2;
  std::string split = "sampler";
  std::string parameters = "broadcast";
  std::string strategy = "fp32";
  bool sync_batchnorm = false;
  std::string weights;
  std::string checkpoint_dir;
  std::string metrics;
  program::LogFlags log{.folder = "log"};
  bool quiet = false;
  bool verbose = false;
};

Images load(const Settings& settings) {
  if (settings.data.empty())
    return Images(RandomImages(settings.samples, settings.image_size, settings.seed));
  return Images(lockstep::ImageFolder(
      settings.data,
      {.size = settings.image_size, .crop = lockstep::ImageCrop::random, .seed = settings.seed}));
}

/// Loads a state dict of torchvision's model that Python has saved. If the number of classes
/// differs, keeps the last layer's values and returns false.
bool load_weights(ResNet50& model, const std::string& path) {
  auto weights = lockstep::read_torch_file(path);
  if (!weights.isGenericDict())
    throw lockstep::CheckpointError(path + ": expected a state dict, found " + weights.tagKind());
  auto dict = weights.toGenericDict();
  const auto stored = dict.find("fc.weight");
  const bool fits = stored == dict.end() || !stored->value().isTensor() ||
                    stored->value().toTensor().sizes() == model.fc->weight.sizes();
  if (!fits) {
    dict.insert_or_assign("fc.weight", model.fc->weight.detach());
    dict.insert_or_assign("fc.bias", model.fc->bias.detach());
  }
  try {
    lockstep::load_state_dict(model, dict);
  } catch (const lockstep::CheckpointError& error) {
    throw lockstep::CheckpointError(path + ": " + error.what());
  }
  return fits;
}

void train(const Settings& settings, const lockstep::Group& world) {
  const bool first = world.rank() == 0;
  const bool loud = first && !settings.quiet;
  const auto ranks = static_cast<std::size_t>(world.size());
  const bool reads = first || settings.split == "sampler";
  if (settings.image_size == 32 && settings.batch_size == 1)
    throw lockstep::InvalidArgument(
        "--batch-size 1: expected 2 or more of --image-size 32, of which the last batch norms see "
        "a point each");
  std::optional<program::MetricsFile> metrics;
  program::CheckpointDir folder(settings.checkpoint_dir);
  std::optional<Images> images;
  lockstep::all_or_none(world, [&] {
    if (reads) images.emplace(load(settings));
    if (first) metrics.emplace(settings.metrics, folder.newest().has_value());
  });
  const at::Tensor sizes = torch::tensor({first ? static_cast<std::int64_t>(*images->size()) : 0,
                                          first ? std::int64_t{images->classes()} : 0});
  world.host().broadcast(sizes).wait();  // ranks that do not read need the sizes, too
  const auto samples = static_cast<std::size_t>(sizes[0].item<std::int64_t>());
  if (samples / ranks < settings.batch_size)
    throw lockstep::InvalidArgument(
        (settings.data.empty()
             ? "--samples " + std::to_string(samples)
             : "--data " + settings.data + ": " + program::plural(samples, "image")) +
        ": expected a batch of " + std::to_string(settings.batch_size) + " or more for each of " +
        program::plural(ranks, "rank"));
  folder.prepare(world);
  lockstep::RunLog log(world, program::log_options(settings.log, settings.strategy));
  std::shared_ptr<ResNet50> model;
  world.in_turn([&] {
    torch::manual_seed(settings.seed);
    model = std::make_shared<ResNet50>(sizes[1].item<int>());
  });
  if (!settings.weights.empty()) {
    bool whole = true;
    lockstep::all_or_none(world, [&] {
      // The other ranks receive rank 0's weights, unless all ranks must load the same file.
      if (first || settings.parameters == "same_seed")
        whole = load_weights(*model, settings.weights);
    });
    if (loud)
      std::cout << settings.weights << (whole ? "" : ", but for its last layer,") << " is loaded"
                << std::endl;
  }
  model->to(world.device());
  if (settings.sync_batchnorm) {
    const auto layers = lockstep::convert_sync_batchnorm(*model, world);
    if (loud)
      std::cout << program::plural(layers, "batch norm") << " synchronised over all ranks"
                << std::endl;
  }
  const auto initial_sync = settings.parameters == "same_seed" ? lockstep::InitialSync::same_seed
                                                               : lockstep::InitialSync::broadcast;
  lockstep::DistributedDataParallel ddp(
      model, world,
      {.strategy = lockstep::parse_strategy(settings.strategy), .initial_sync = initial_sync});
  torch::optim::SGD momentum(
      model->parameters(), torch::optim::SGDOptions(settings.lr).momentum(0.9).weight_decay(1e-4));
  const lockstep::Checkpoint checkpoint{.model = *model, .optimizer = momentum, .strategy = ddp};
  std::int64_t done = 0;
  const auto resumed = folder.load_newest(checkpoint, world, loud);
  if (resumed) done = resumed->meta.epoch;
  if (loud)
    std::cout << "ResNet-50, " << samples << (settings.data.empty() ? " random" : "")
              << " images of " << settings.image_size << "x" << settings.image_size << ", "
              << program::plural(ranks, "rank") << " of batch " << settings.batch_size << std::endl;

  // Every rank reads its own share, or rank 0 reads and scatters its batches.
  const bool deals = settings.split == "rank0";
  const std::size_t batch_read = settings.batch_size * (deals ? ranks : 1);
  lockstep::DistributedSampler sampler(
      samples, deals ? lockstep::ShardSpec{} : lockstep::ShardSpec{world.rank(), world.size()},
      {.seed = settings.seed, .tail = deals ? lockstep::Tail::pad : lockstep::Tail::drop});
  sampler.set_epoch(static_cast<std::uint64_t>(done));
  using Loader = lockstep::PrefetchLoader<Images, lockstep::DistributedSampler>;
  std::optional<Loader> loader;
  if (reads)
    loader.emplace(*images, sampler,
                   lockstep::PrefetchOptions{
                       .batch_size = batch_read, .workers = settings.workers, .drop_last = true});

  constexpr int lines = 5;  // batches between two lines of output
  const auto begin = program::Clock::now();
  std::int64_t steps_before =
      done * static_cast<std::int64_t>(sampler.samples_per_rank() / batch_read);
  if (resumed) steps_before = program::steps_before(resumed->meta, steps_before);
  std::int64_t steps = steps_before;
  const auto run_epoch = [&](std::int64_t epoch, auto&& batches) {
    lockstep::Tally tally(5);
    int number = 0;
    log.begin_interval(steps);
    for (const Batch& loaded : batches) {
      const Batch batch = program::on_device(loaded, world);
      const at::Tensor outputs = ddp(batch.data);
      const at::Tensor loss = cross_entropy(outputs, batch.target);
      loss.backward();
      momentum.step();
      momentum.zero_grad();
      tally.add(loss, outputs, batch.target);
      ++steps;
      if (number++ % lines != 0) continue;
      const lockstep::Score score = tally.score(world);
      tally = lockstep::Tally(5);
      program::record(metrics, log, steps,
                      {{"epoch", epoch},
                       {"batch", number - 1},
                       {"train_loss", score.loss},
                       {"acc1", score.accuracy},
                       {"acc5", score.top}});
      if (!loud) continue;
      std::cout << "[epoch " << epoch << ", batch " << number - 1 << "] loss "
                << fixed(score.loss, 5) << ", acc1 " << fixed(score.accuracy, 5) << ", acc5 "
                << fixed(score.top, 5) << std::endl;
    }
    log.end_interval(steps, number * static_cast<std::int64_t>(settings.batch_size));
  };

  for (std::int64_t epoch = done; epoch < settings.epochs; ++epoch) {
    if (reads) images->set_epoch(epoch);
    if (deals)
      run_epoch(epoch, lockstep::scatter_from_rank0(loader ? &*loader : nullptr, world));
    else
      run_epoch(epoch, *loader);
    folder.save(checkpoint, {.epoch = epoch + 1, .notes = program::steps_note(steps)});
  }
  folder.finish();
  const double seconds = program::seconds_since(begin);
  const std::int64_t taken = steps - steps_before;
  const double rate =
      lockstep::throughput(taken * static_cast<std::int64_t>(settings.batch_size), seconds, world);
  if (taken > 0)
    program::record(metrics, log, steps,
                    {{"steps", taken}, {"seconds", seconds}, {"images_per_second", rate}});
  program::finish(log, "resnet50");
  if (!loud) return;
  if (settings.verbose) program::print_statistics(world);
  std::cout << program::plural(taken, "step") << " took " << fixed(seconds, 1)
            << " s: " << fixed(rate, 2) << " images/s" << std::endl;
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Trains ResNet-50 on images. Start it with: lockstep run -n 2 resnet50", "resnet50");
  app.add_option("--epochs", settings.epochs, "Passes over the images")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "Images a rank and step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--data", settings.data,
                 "Folder of images with a folder for each class; random images without it");
  app.add_option("--samples", settings.samples, "Random images, where there is no --data")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--image-size", settings.image_size, "Height and width of an image")
      ->check(CLI::Range(32, 4096))
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "Learning rate; momentum is 0.9, weight decay 0.0001")
      ->check(program::positive())
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "Decides weights, images and order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--workers", settings.workers, "Threads that read ahead for a rank")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--split", settings.split, "Who reads: each rank its share, or rank 0 for all")
      ->check(CLI::IsMember({"sampler", "rank0"}))
      ->capture_default_str();
  app.add_option("--parameters", settings.parameters,
                 "How ranks come to equal ones: rank 0's, or a verified equal start")
      ->check(CLI::IsMember({"broadcast", "same_seed"}))
      ->capture_default_str();
  program::add_strategy(app, settings.strategy);
  program::add_world(app);
  app.add_flag("--sync-batchnorm", settings.sync_batchnorm,
               "Batch norms use the images of all ranks");
  app.add_option("--weights", settings.weights,
                 "State dict of torchvision's resnet50 to begin with, saved by Python");
  program::add_checkpoint_dir(app, settings.checkpoint_dir);
  app.add_option("--metrics", settings.metrics, "File for one JSON object a line");
  program::add_log_options(app, settings.log);
  program::add_output(app, settings.quiet, settings.verbose);
  return program::run(app, argc, argv,
                      [&](const lockstep::Group& world) { train(settings, world); });
}
