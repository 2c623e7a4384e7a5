#include "program.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "config_file.h"

namespace program {
namespace {

/// The error about the first word of the command line that is none of the program's.
CLI::ValidationError unexpected(const CLI::App& app) {
  const std::string word = app.remaining().front();
  if (!word.starts_with('-')) return CLI::ValidationError(word, "unexpected argument");
  return unknown_option(app, "", word.substr(0, word.find('=')), "--");
}

/// The value of --backend, if the program has this option.
std::optional<lockstep::Backend> backend_of(const CLI::App& app) {
  const auto* option = app.get_option_no_throw("--backend");
  if (option == nullptr || option->empty()) return std::nullopt;
  return lockstep::parse_backend(option->as<std::string>());
}

/// The value of --device; none for auto. A program without this option trains on the CPU.
std::optional<at::DeviceType> device_of(const CLI::App& app) {
  const auto* option = app.get_option_no_throw("--device");
  if (option == nullptr) return at::kCPU;
  if (option->empty() || option->as<std::string>() == "auto") return std::nullopt;
  return at::Device(option->as<std::string>()).type();
}

}  // namespace

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

CLI::Validator positive() {
  return {[](std::string& text) {
            const double value = std::strtod(text.c_str(), nullptr);
            return std::isfinite(value) && value > 0 ? std::string()
                                                     : "expected a positive number, got " + text;
          },
          "POSITIVE"};
}

CLI::Validator strategy() {
  return {[](std::string& text) {
            try {
              lockstep::parse_strategy(text);
              return std::string();
            } catch (const lockstep::InvalidArgument& error) {
              return std::string(error.what());
            }
          },
          "STRATEGY"};
}

CLI::Option* add_strategy(CLI::App& app, std::string& text) {
  return app
      .add_option("--strategy", text,
                  "How the ranks synchronise: fp32, fp16, topk:0.01, …; docs/algorithms.md lists "
                  "all, with their options")
      ->check(strategy())
      ->capture_default_str();
}

CLI::Option* add_threads(CLI::App& app, int& threads, const char* name) {
  return app
      .add_option(name, threads, "So many ranks as threads of this process, without a launcher")
      ->check(CLI::Range(1, 512));
}

void add_world(CLI::App& app) {
  app.add_option("--backend",
                 "What the ranks exchange by: auto, host, mpi or hierarchical [LOCKSTEP_BACKEND's]")
      ->check([](const std::string& text) {
        try {
          lockstep::parse_backend(text);
          return std::string();
        } catch (const lockstep::InvalidArgument& error) {
          return std::string(error.what());
        }
      })
      ->type_name("NAME");
  app.add_option("--device",
                 "What each rank trains on: auto, cpu or cuda, the GPU with its local rank "
                 "[LOCKSTEP_DEVICE's]")
      ->check([](const std::string& text) {
        try {
          if (text != "auto" && at::Device(text).has_index())
            return "expected no index, got " + text;
          return std::string();
        } catch (const c10::Error&) {
          return "expected auto, cpu or cuda, got " + text;
        }
      })
      ->type_name("NAME");
}

torch::data::Example<> on_device(const torch::data::Example<>& batch,
                                 const lockstep::Group& world) {
  return {batch.data.to(world.device()), batch.target.to(world.device())};
}

CLI::Option* add_quiet(CLI::App& app, bool& quiet) {
  return app.add_flag("--quiet", quiet, "Print nothing but errors");
}

CLI::Option* add_verbose(CLI::App& app, bool& verbose) {
  return app.add_flag("-v,--verbose", verbose,
                      "Print the number, bytes and time of each collective at the end");
}

void add_output(CLI::App& app, bool& quiet, bool& verbose) {
  add_verbose(app, verbose)->excludes(add_quiet(app, quiet));
}

CLI::Option* add_mnist_folder(CLI::App& app, std::string& path) {
  return app.add_option("--data", path, "Folder with the four MNIST files, plain or .gz")
      ->capture_default_str();
}

CLI::Option* add_bf16(CLI::App& app, std::string& update) {
  return app
      .add_option("--bf16", update,
                  "Train with parameters of bfloat16, and update them through float32 masters, by "
                  "stochastic rounding or with Kahan summation [parameters of float32]")
      ->check(CLI::IsMember({"master", "stochastic", "kahan"}))
      ->type_name("NAME");
}

MetricsFile::MetricsFile(const std::string& path, bool added) : path_(path) {
  if (path.empty()) return;
  out_.open(path, added ? std::ios::app : std::ios::trunc);
  check();
}

void MetricsFile::write(Values values) {
  if (path_.empty()) return;
  out_ << std::setprecision(std::numeric_limits<double>::max_digits10);
  const char* separator = "{";
  for (const auto& [name, value] : values) {
    out_ << separator << '"' << name << "\": ";
    // JSON has no word for what is not a number.
    std::isfinite(value) ? out_ << value : out_ << "null";
    separator = ", ";
  }
  out_ << '}' << std::endl;
  check();
}

void MetricsFile::check() const {
  if (!out_)
    throw lockstep::Error("--metrics " + path_ + ": cannot write: " + std::strerror(errno));
}

std::map<std::string, std::string> steps_note(std::int64_t steps) {
  return {{"steps", std::to_string(steps)}};
}

std::int64_t steps_before(const lockstep::CheckpointMeta& meta, std::int64_t estimate) {
  const auto noted = meta.notes.find("steps");
  return noted == meta.notes.end() ? estimate : std::stoll(noted->second);
}

std::string epochs_done(std::int64_t epochs) {
  return plural(epochs, "epoch") + (epochs == 1 ? " is done" : " are done");
}

CheckpointDir::CheckpointDir(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) folder_.emplace(path_);
}

std::optional<std::filesystem::path> CheckpointDir::newest() const {
  return folder_ ? folder_->newest() : std::nullopt;
}

void CheckpointDir::prepare(const lockstep::Group& world) {
  if (!folder_) return;
  lockstep::all_or_none(world, [&] {
    std::error_code error;
    if (world.rank() == 0) std::filesystem::create_directories(path_, error);
    if (error)
      throw lockstep::Error("--checkpoint-dir " + path_ + ": cannot make: " + error.message());
  });
  folder_->lock(world);
  lockstep::check_checkpoint_path(path_ + "/test", world);
  writer_.emplace(world);
}

std::optional<lockstep::Resumed> CheckpointDir::load_newest(const lockstep::Checkpoint& checkpoint,
                                                            const lockstep::Group& world,
                                                            bool told) {
  if (!folder_) return std::nullopt;
  auto found = folder_->load_newest(checkpoint, world);
  writer_->prepare(checkpoint);
  if (found && told) {
    if (!found->changes.empty()) std::cout << path_ << ": " << found->changes << '\n';
    std::cout << path_ << ": " << epochs_done(found->meta.epoch) << std::endl;
  }
  return found;
}

void CheckpointDir::save(const lockstep::Checkpoint& checkpoint,
                         const lockstep::CheckpointMeta& meta) {
  if (folder_) folder_->save_behind(*writer_, checkpoint, meta);
}

void CheckpointDir::finish() {
  if (folder_) writer_->wait();
}

CLI::Option* add_checkpoint_dir(CLI::App& app, std::string& path) {
  return app.add_option(
      "--checkpoint-dir", path,
      "Folder for the last checkpoints and the best; a run that is started again goes "
      "on from the newest undamaged one");
}

void add_log_options(CLI::App& app, LogFlags& flags) {
  const bool always = !flags.folder.empty();
  // lockstep run has a --log-dir, too: a folder of what the ranks print.
  auto* folder = app.add_option("--run-log,--log-dir", flags.folder,
                                "Folder for the run's log, which lockstep report and TensorBoard "
                                "show; '' for none. --log-dir is its former name")
                     ->capture_default_str();
  auto* trace =
      app.add_flag("--trace", flags.trace,
                   "Log what each rank computes, waits for and exchanges, too, as trace.json");
  if (!always) trace->needs(folder);
}

lockstep::RunLogOptions log_options(const LogFlags& flags, const std::string& strategy) {
  return {.folder = flags.folder, .trace = flags.trace, .strategy = strategy};
}

void record(std::optional<MetricsFile>& metrics, lockstep::RunLog& log, std::int64_t step,
            MetricsFile::Values values) {
  if (metrics) metrics->write(values);
  log.scalars(step, values);
}

void print_statistics(const lockstep::Group& world) {
  if (world.rank() == 0 && world.size() > 1)
    std::cout << '\n' << lockstep::to_text(world.statistics()) << std::endl;
}

void record(lockstep::RunLog& log, std::int64_t step, const lockstep::Efficiency& efficiency) {
  if (!efficiency.reliable()) return;
  log.scalars(step, {{"efficiency", efficiency.median},
                     {"efficiency_least", efficiency.least},
                     {"efficiency_most", efficiency.most}});
}

void finish(lockstep::RunLog& log, const char* program) {
  log.close();
  const std::string lost = log.lost();
  if (!lost.empty()) std::cerr << program << ": the run's log was lost: " << lost << std::endl;
}

std::shared_ptr<const ConfigFile> parse(CLI::App& app, int argc, char** argv) {
  const auto config = std::make_shared<ConfigFile>(app);
  app.config_formatter(config);
  app.set_config("--config", "",
                 "File with lines NAME = VALUE for options that the command line does not set")
      ->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError&) {
    if (app.remaining_size() > 0) throw unexpected(app);
    throw;
  } catch (const CLI::ExtrasError&) {
    throw unexpected(app);
  } catch (const CLI::FileError&) {
    throw unreadable(*config);
  } catch (const CLI::ExcludesError& error) {
    // One of the two options may be in the file only.
    if (config->was_read()) throw CLI::ValidationError(config->path(), error.what());
    throw;
  }
  return config;
}

int run(CLI::App& app, int argc, char** argv, const std::function<void(const lockstep::Group&)>& fn,
        const int& threads) {
  lockstep::RunOptions options{.init = {.keep_freed_memory = true}};
  std::shared_ptr<const ConfigFile> config;
  try {
    config = parse(app, argc, argv);
    const auto backend = backend_of(app);
    if (threads > 0 && backend && *backend != lockstep::Backend::automatic &&
        *backend != lockstep::Backend::host) {
      throw CLI::ValidationError("--backend",
                                 "got " + std::string(lockstep::name(*backend)) +
                                     ", expected auto or host for threads of one process");
    }
    options.init.backend = backend;
    options.init.device = device_of(app);
    options.threads = threads;
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == 0;
    if (is_help) return lockstep::is_startup_reporter() ? app.exit(error) : 0;
    std::ostringstream text;
    app.exit(error, text, text);
    options.usage_error = text.str();
  }
  const auto checked = [&](const lockstep::Group& world) {
    config->check_same(world);
    fn(world);
  };
  return lockstep::run_main(argc, argv, checked, options);
}

}  // namespace program
