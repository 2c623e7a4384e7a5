// Trains a convolutional network to forecast a series with seasons, and compares its error with
// two baselines that need no training:
//
//   lockstep run -n 2 forecast
//   lockstep run -n 2 forecast --data load.csv --season 24 --window 168 --horizon 24
//   lockstep run -n 2 --max-restarts 3 forecast --checkpoint-dir run
//   forecast --threads 2
//
// Without --data it forecasts the weekly CO2 concentrations of Mauna Loa, which are in
// examples/data/co2.
#include <lockstep/lockstep.h>
#include <torch/nn.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program.h"
#include "sequence_training.h"

#ifndef CO2_SERIES
#define CO2_SERIES "examples/data/co2/co2.csv"
#endif

namespace nn = torch::nn;
using program::fixed;

struct Settings {
  std::string data = CO2_SERIES;
  std::int64_t season = 52;
  std::int64_t window = 104;
  std::int64_t horizon = 26;
  std::int64_t channels = 32;
  program::Training training{.epochs = 10, .batch_size = 32, .lr = 0.001};
};

/// Dilated convolutions over the past values, then a linear layer that yields all future values.
struct Network : nn::Module {
  explicit Network(const Settings& settings) {
    std::int64_t inputs = 1;
    for (const int dilation : {1, 4, 16}) {  // 43 values contribute to an output
      layers->push_back(nn::Conv1d(
          nn::Conv1dOptions(inputs, settings.channels, 3).dilation(dilation).padding(dilation)));
      layers->push_back(nn::ReLU());
      inputs = settings.channels;
    }
    layers->push_back(nn::Flatten());
    layers->push_back(nn::Linear(settings.channels * settings.window, settings.horizon));
    register_module("layers", layers);
  }

  at::Tensor forward(const at::Tensor& past) {  // (batch, window) to (batch, horizon)
    return layers->forward(past.unsqueeze(1));
  }

  nn::Sequential layers;
};

struct Series {
  std::string name;   ///< of the value
  at::Tensor values;  ///< float64
};

/// The beginning of a field of a file that may hold anything.
std::string printable(std::string field) {
  if (field.size() > 40) field.resize(40);
  std::replace_if(
      field.begin(), field.end(), [](unsigned char c) { return std::isprint(c) == 0; }, '?');
  return field;
}

/// The last column of a CSV file with a header. Missing values are interpolated linearly.
Series read_series(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    throw lockstep::DataError("--data " + path + ": cannot open: " + std::strerror(errno) +
                              ". Give a CSV file with a header and the values in the last column.");
  const auto last_field = [](std::string line) {
    line.erase(0, line.rfind(',') + 1);  // npos + 1 is 0
    line.erase(std::remove_if(line.begin(), line.end(),
                              [](unsigned char c) { return std::isspace(c) != 0 || c == '"'; }),
               line.end());
    return line;
  };
  std::string line;
  std::getline(in, line);
  const std::string name = last_field(line);
  std::vector<double> values;
  std::size_t known = 0;  // values up to the last one that is not missing
  for (std::size_t number = 2; std::getline(in, line); ++number) {
    const std::string field = last_field(line);
    if (field.empty()) {
      values.push_back(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    const auto refuse = [&](const std::string& why) {
      throw lockstep::DataError("--data " + path + ": line " + std::to_string(number) + ": " + why);
    };
    char* end = nullptr;
    const double value = std::strtod(field.c_str(), &end);
    if (*end != '\0' || !std::isfinite(value))
      refuse("got '" + printable(field) +
             "', expected a finite number or nothing in the last column. Correct this line.");
    if (known == 0 && !values.empty())
      refuse("got the first value, expected it on line 2. Remove the lines before it.");
    const double before = known > 0 ? values[known - 1] : value;
    const auto missing = static_cast<double>(values.size() - known);
    for (std::size_t i = known; i < values.size(); ++i)
      values[i] = before + (value - before) * static_cast<double>(i - known + 1) / (missing + 1);
    values.push_back(value);
    known = values.size();
  }
  values.resize(known);  // what is missing at the end has no value after it
  return {.name = name, .values = at::tensor(values, at::kDouble)};
}

class Forecast {
 public:
  using Model = Network;
  static constexpr const char* name = "forecast";

  /// Tests with the forecasts of the last fifth of the series. Their past may reach into the
  /// training part; their future does not.
  Forecast(const Settings& settings, const at::Tensor& series)
      : settings_(settings),
        training_(windows(series.narrow(0, 0, split(series)), 0)),
        test_(windows(series, split(series) - settings.window)) {
    if (split(series) < settings.window || training_.size() == 0 || test_.size() == 0)
      throw lockstep::DataError(
          "--data " + settings.data + ": got " + program::plural(series.size(0), "value") +
          ", expected at least " +
          std::to_string(
              std::max(5 * settings.horizon, 5 * (settings.window + settings.horizon) / 4 + 1)) +
          " for --window " + std::to_string(settings.window) + " and --horizon " +
          std::to_string(settings.horizon) + ". Give a longer series or lower them.");
    const at::Tensor known = series.narrow(0, 0, split(series));
    const double error = (known.slice(0, settings.season) - known.slice(0, 0, -settings.season))
                             .abs()
                             .mean()
                             .item<double>();
    if (error > 0) scale_ = error;
  }

  std::shared_ptr<Model> make_model() const { return std::make_shared<Model>(settings_); }
  const program::Windows& training_windows() const { return training_; }
  const program::Windows& test_windows() const { return test_; }

  /// The mean squared error in units of the seasonal baseline's mean absolute error.
  at::Tensor loss(Model& model, const at::Tensor& batch) const {
    const at::Tensor target = scaled(future(batch), batch);
    return nn::functional::mse_loss(model.forward(scaled(past(batch), batch)), target);
  }

  program::Evaluation evaluate(Model& model, const lockstep::Group& world, std::int64_t epoch,
                               const program::Record& record) const {
    lockstep::Mean model_error;
    lockstep::Mean season_error;
    lockstep::Mean growth_error;
    auto batches = program::evaluation_batches(test_, world);
    for (const at::Tensor& loaded : batches) {
      const at::Tensor batch = loaded.to(world.device());
      const at::Tensor target = future(batch);
      const at::Tensor forecast =
          model.forward(scaled(past(batch), batch)).to(at::kDouble) * scale_ + last(batch);
      const at::Tensor season =
          batch.narrow(1, settings_.window - settings_.season, settings_.horizon);
      model_error.add((forecast - target).abs());
      season_error.add((season - target).abs());
      growth_error.add((season + growth(batch) - target).abs());
    }
    const auto [error, of_season, with_growth] =
        lockstep::compute(world, model_error, season_error, growth_error);
    record({{"epoch", epoch},
            {"test_error", error},
            {"last_season_error", of_season},
            {"last_season_and_growth_error", with_growth}});
    return {.error = error,
            .text = "test error " + fixed(error, 3) + " (last season " + fixed(of_season, 3) +
                    ", with growth " + fixed(with_growth, 3) + ")"};
  }

 private:
  static std::int64_t split(const at::Tensor& series) {
    return series.size(0) - series.size(0) / 5;
  }
  program::Windows windows(const at::Tensor& series, std::int64_t first) const {
    return {series, first, 1, settings_.window + settings_.horizon};
  }
  at::Tensor past(const at::Tensor& batch) const { return batch.slice(1, 0, settings_.window); }
  at::Tensor future(const at::Tensor& batch) const { return batch.slice(1, settings_.window); }
  at::Tensor last(const at::Tensor& batch) const {
    return batch.narrow(1, settings_.window - 1, 1);
  }
  /// From a season before the last value to the last value.
  at::Tensor growth(const at::Tensor& batch) const {
    return last(batch) - batch.narrow(1, settings_.window - 1 - settings_.season, 1);
  }
  /// Values relative to the last known one, so the model sees no level.
  at::Tensor scaled(const at::Tensor& values, const at::Tensor& batch) const {
    return ((values - last(batch)) / scale_).to(at::kFloat);
  }

  Settings settings_;
  program::Windows training_;
  program::Windows test_;
  double scale_ = 1;
};

void train(const Settings& settings, const lockstep::Group& world) {
  std::optional<Forecast> problem;
  std::string name;
  lockstep::all_or_none(world, [&] {
    const Series series = read_series(settings.data);
    name = series.name;
    problem.emplace(settings, series.values);
  });
  if (world.rank() == 0 && !settings.training.quiet)
    std::cout << name << ": " << program::plural(problem->training_windows().size(), "window")
              << " to train, " << problem->test_windows().size()
              << " later ones to test; errors are means of |forecast - value|; "
              << program::plural(world.size(), "rank") << std::endl;
  program::train(settings.training, *problem, world);
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Trains a network to forecast a series with seasons. Start it with: lockstep run -n 2 "
      "forecast",
      "forecast");
  app.add_option("--data", settings.data,
                 "CSV file with a header, and the values in the last column in order of time")
      ->type_name("FILE")
      ->capture_default_str();
  program::add_count(app, "--season", settings.season, "Values a season");
  program::add_count(app, "--window", settings.window, "Past values that the network gets");
  program::add_count(app, "--horizon", settings.horizon, "Future values that it forecasts");
  program::add_count(app, "--channels", settings.channels, "Channels of each convolution");
  program::add_training(app, settings.training);
  app.parse_complete_callback([&] {
    if (settings.horizon > settings.season)
      throw CLI::ValidationError("--horizon", "got " + std::to_string(settings.horizon) +
                                                  ", expected at most --season " +
                                                  std::to_string(settings.season));
    if (settings.window <= settings.season)
      throw CLI::ValidationError("--window", "got " + std::to_string(settings.window) +
                                                 ", expected more than --season " +
                                                 std::to_string(settings.season));
  });
  return program::run(
      app, argc, argv, [&](const lockstep::Group& world) { train(settings, world); },
      settings.training.threads);
}
