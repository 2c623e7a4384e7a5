// Trains a small transformer that predicts the next byte of a text, and lets it write some:
//
//   lockstep run -n 2 language_model
//   lockstep run -n 2 language_model --data book.txt notes/ --epochs 10 --sample 1000
//   lockstep run -n 2 --max-restarts 3 language_model --checkpoint-dir run
//   language_model --threads 2
//
// Without --data it reads the licences that every Debian system has.
#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/lockstep.h>
#include <torch/nn.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "program.h"
#include "sequence_training.h"

namespace nn = torch::nn;
using program::fixed;

constexpr std::int64_t bytes = 256;  // the vocabulary

struct Shape {
  std::int64_t layers = 3;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 64;  ///< bytes from which the next one is predicted
};

/// A transformer layer: attention to the bytes before, then a perceptron, each with a layer norm
/// before it and a residual connection around it.
struct LayerImpl : nn::Module {
  explicit LayerImpl(const Shape& shape)
      : heads(shape.heads),
        attention_norm(register_module("attention_norm", norm(shape.width))),
        query_key_value(
            register_module("query_key_value", nn::Linear(shape.width, 3 * shape.width))),
        attended(register_module("attended", nn::Linear(shape.width, shape.width))),
        perceptron(register_module(
            "perceptron",
            nn::Sequential(norm(shape.width), nn::Linear(shape.width, 4 * shape.width), nn::GELU(),
                           nn::Linear(4 * shape.width, shape.width)))) {}

  at::Tensor forward(const at::Tensor& x) {  // (batch, time, width)
    const auto parts = query_key_value(attention_norm(x))
                           .unflatten(2, {3, heads, x.size(2) / heads})
                           .permute({2, 0, 3, 1, 4})  // (3, batch, heads, time, width of a head)
                           .unbind();
    const at::Tensor seen =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    const at::Tensor y = x + attended(seen.transpose(1, 2).flatten(2));
    return y + perceptron->forward(y);
  }

  static nn::LayerNorm norm(std::int64_t width) {
    return nn::LayerNorm(nn::LayerNormOptions({width}));
  }

  std::int64_t heads;
  nn::LayerNorm attention_norm;
  nn::Linear query_key_value;
  nn::Linear attended;
  nn::Sequential perceptron;
};
TORCH_MODULE(Layer);

struct Transformer : nn::Module {
  explicit Transformer(const Shape& shape)
      : context(shape.context),
        byte(register_module("byte", nn::Embedding(bytes, shape.width))),
        position(register_module("position", nn::Embedding(shape.context, shape.width))),
        layers(register_module("layers", nn::Sequential())),
        next(register_module("next", nn::Linear(shape.width, bytes))) {
    const torch::NoGradGuard no_grad;
    byte->weight.normal_(0, 0.02);
    position->weight.normal_(0, 0.02);
    for (std::int64_t i = 0; i < shape.layers; ++i) layers->push_back(Layer(shape));
    layers->push_back(LayerImpl::norm(shape.width));
  }

  /// The logits of the byte after each: (batch, time) to (batch, time, 256). time: at most context.
  at::Tensor forward(const at::Tensor& text) {
    return next(layers->forward(byte(text) + position(at::arange(text.size(1), text.device()))));
  }

  std::int64_t context;
  nn::Embedding byte;
  nn::Embedding position;
  nn::Sequential layers;
  nn::Linear next;
};

struct Settings {
  std::vector<std::string> data{"/usr/share/common-licenses"};
  Shape shape;
  std::int64_t sample = 300;
  std::string prompt = "The ";
  program::Training training{.epochs = 5, .batch_size = 16, .lr = 0.001};
};

/// A path's files: itself, or what a folder has, by name. Links are left out: they repeat a file.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path))
    throw lockstep::DataError("--data " + path.string() +
                              ": found nothing there. Give text files or folders with --data, or "
                              "install Debian's licences (apt install base-files).");
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// The bytes of all files, one after the other.
at::Tensor read_text(const std::vector<std::string>& paths) {
  std::string text;
  for (const auto& path : paths) {
    for (const auto& file : files_of(path)) {
      std::ifstream in(file, std::ios::binary);
      text.append(std::istreambuf_iterator<char>(in), {});
      if (!in.good() && !in.eof())
        throw lockstep::DataError("--data " + file.string() +
                                  ": cannot read: " + std::strerror(errno));
    }
  }
  return at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte).clone();
}

class LanguageModel {
 public:
  using Model = Transformer;
  static constexpr const char* name = "language_model";

  /// The last tenth of the text is for the test.
  LanguageModel(const Settings& settings, const at::Tensor& text)
      : shape_(settings.shape),
        training_(windows(text.narrow(0, 0, text.size(0) - text.size(0) / 10))),
        test_(windows(text.narrow(0, text.size(0) - text.size(0) / 10, text.size(0) / 10))) {
    if (training_.size() == 0 || test_.size() == 0)
      throw lockstep::DataError("--data: got " + program::plural(text.size(0), "byte") +
                                ", expected at least " + std::to_string(10 * (shape_.context + 1)) +
                                " for --context " + std::to_string(shape_.context) +
                                ". Give more text or lower --context.");
  }

  std::shared_ptr<Model> make_model() const { return std::make_shared<Model>(shape_); }
  const program::Windows& training_windows() const { return training_; }
  const program::Windows& test_windows() const { return test_; }

  /// The mean cross-entropy of a byte. Units: nats.
  static at::Tensor loss(Model& model, const at::Tensor& batch) {
    const at::Tensor text = batch.to(at::kLong);
    const at::Tensor logits = model.forward(text.slice(1, 0, -1));
    return nn::functional::cross_entropy(logits.flatten(0, 1), text.slice(1, 1).flatten());
  }

  program::Evaluation evaluate(Model& model, const lockstep::Group& world, std::int64_t epoch,
                               const program::Record& record) const {
    lockstep::Mean mean;
    auto batches = program::evaluation_batches(test_, world);
    for (const at::Tensor& batch : batches)
      mean.add(loss(model, batch.to(world.device())), static_cast<double>(batch.size(0)));
    const double nats = lockstep::compute(world, mean);
    const double bits = nats / std::numbers::ln2;
    record({{"epoch", epoch}, {"test_loss", nats}, {"test_bits_per_byte", bits}});
    return {
        .error = nats,
        .text = "test " + fixed(bits, 3) + " bits a byte, perplexity " + fixed(std::exp(nats), 2)};
  }

 private:
  /// Each byte but the first is predicted in one window.
  program::Windows windows(const at::Tensor& text) const {
    return {text, 0, shape_.context, shape_.context + 1};
  }

  Shape shape_;
  program::Windows training_;
  program::Windows test_;
};

/// The prompt, and length bytes that the model writes after it.
std::string write(Transformer& model, std::string text, std::int64_t length, std::uint64_t seed) {
  constexpr double temperature = 0.8;  // below 1: likely bytes become likelier
  const torch::NoGradGuard no_grad;
  model.eval();
  const at::Device device = model.parameters().front().device();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (std::int64_t i = 0; i < length; ++i) {
    const auto seen = std::min<std::int64_t>(model.context, static_cast<std::int64_t>(text.size()));
    const at::Tensor context =
        at::from_blob(text.data() + text.size() - seen, {1, seen}, at::kByte).to(at::kLong);
    const at::Tensor logits = model.forward(context.to(device))[0][-1].cpu() / temperature;
    text += static_cast<char>(
        at::multinomial(logits.softmax(0), 1, false, generator).item<std::int64_t>());
  }
  // A terminal takes other control characters as commands.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' && c != '\n'; }, ' ');
  return text;
}

void train(const Settings& settings, const lockstep::Group& world) {
  const bool loud = world.rank() == 0 && !settings.training.quiet;
  std::optional<LanguageModel> problem;
  lockstep::all_or_none(world, [&] { problem.emplace(settings, read_text(settings.data)); });
  if (loud)
    std::cout << program::plural(problem->training_windows().size(), "window") << " of "
              << settings.shape.context << " bytes to train, " << problem->test_windows().size()
              << " to test; " << program::plural(world.size(), "rank") << std::endl;
  const auto model = program::train(settings.training, *problem, world);
  if (loud && settings.sample > 0)
    std::cout << "\nsample:\n"
              << write(*model, settings.prompt, settings.sample, settings.training.seed)
              << std::endl;
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Trains a transformer to predict the next byte of a text. Start it with: lockstep run -n 2 "
      "language_model",
      "language_model");
  app.add_option("--data", settings.data, "Text files, and folders of them")
      ->type_name("PATH")
      ->capture_default_str();
  program::add_count(app, "--context", settings.shape.context,
                     "Bytes from which the next one is predicted");
  program::add_count(app, "--layers", settings.shape.layers, "Transformer layers");
  program::add_count(app, "--width", settings.shape.width, "Features of each byte");
  program::add_count(app, "--heads", settings.shape.heads, "Attention heads of a layer");
  program::add_count(app, "--sample", settings.sample, "Bytes that the model writes at the end", 0);
  app.add_option("--prompt", settings.prompt, "Text that the model continues")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("expected at least one byte") : std::string();
      })
      ->capture_default_str();
  program::add_training(app, settings.training);
  app.parse_complete_callback([&] {
    if (settings.shape.width % settings.shape.heads != 0)
      throw CLI::ValidationError("--heads", "got " + std::to_string(settings.shape.heads) +
                                                ", expected a divisor of --width " +
                                                std::to_string(settings.shape.width));
  });
  return program::run(
      app, argc, argv, [&](const lockstep::Group& world) { train(settings, world); },
      settings.training.threads);
}
