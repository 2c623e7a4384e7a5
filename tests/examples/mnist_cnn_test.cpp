#include "tests/examples/program_run.h"

// Runs the example as a user does, on a data set of its own that is small and easy to learn.

namespace lockstep::testing {
namespace {

constexpr int train_size = 203;  // no multiple of ranks or batch
constexpr int test_size = 51;

class MnistCnn : public ProgramRun {
 protected:
  MnistCnn() { write_digits(folder / "data", train_size, test_size); }

  Result two_ranks(const std::string& flags) const {
    return ProgramRun::two_ranks("mnist_cnn" + data + flags);
  }
  Result one_rank(const std::string& flags) const { return alone("mnist_cnn" + data + flags); }

  /// The log of two ranks and three epochs: the metrics, and each rank's buckets in the trace.
  void expect_log(const std::vector<nlohmann::json>& expected, bool has_efficiency) const {
    const auto lines = json_lines("log/metrics.jsonl");
    ASSERT_EQ(lines.size(), has_efficiency ? 4u : 3u) << "the last has the efficiency";
    if (has_efficiency) {
      EXPECT_GT(lines[3]["efficiency_least"], 0.0);
      EXPECT_LE(lines[3]["efficiency_least"], lines[3]["efficiency"]);
      EXPECT_LE(lines[3]["efficiency"], lines[3]["efficiency_most"]);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(lines[i]["step"], 7 * (i + 1)) << "of 102 digits a rank, by 16";
      for (const auto& [name, value] : expected[i].items()) EXPECT_EQ(lines[i][name], value);
    }
    const auto intervals = json_lines("log/intervals.jsonl");
    ASSERT_EQ(intervals.size(), 3u);
    for (const auto& rank : intervals[2]["ranks"]) EXPECT_GT(rank["seconds"], rank["waiting"]);
    // Each backward of each rank, and in it every bucket's last gradient and its exchange.
    std::map<std::pair<int, std::string>, int> count;
    const auto trace = nlohmann::json::parse(content(folder / "log/trace.json"));
    for (const auto& event : trace.at("traceEvents")) {
      const std::string name = event["name"];
      if (event["ph"] == "X" && name == "all_reduce") ++count[{event["pid"], name}];
      if (name == "backward" || name == "ready") ++count[{event["pid"], name}];
    }
    for (const int rank : {0, 1}) {
      EXPECT_EQ((count[{rank, "backward"}]), 21);
      EXPECT_EQ((count[{rank, "ready"}]), 2 * 21);
      EXPECT_EQ((count[{rank, "all_reduce"}]), 2 * 21);
    }
    const Result report = run(quoted_launcher + " report log");
    EXPECT_EQ(report.code, 0) << report.err;
    EXPECT_THAT(content(folder / "log/report.html"), HasSubstr("test_accuracy at step 21"));
  }

  const std::string program = quoted_bin + "mnist_cnn";
  const std::string data = " --data data --batch-size 16 --lr 0.05";
};

TEST_F(MnistCnn, TrainsOnTwoRanks) {
  const Result result = two_ranks(" --epochs 3 --metrics metrics.jsonl --run-log log --trace");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part : {"epoch 1/3  loss ", "epoch 3/3  loss ", " %  test ", " images/s",
                           "efficiency ", "checkpoint ", "mnist_cnn.safetensors"})
    EXPECT_EQ(count(result.out, part), std::string(part).starts_with(" ") ? 3 : 1)
        << part << result.out;
  EXPECT_THAT(result.out, Not(HasSubstr("\r"))) << "a bar belongs on a terminal only";
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b"))) << "so do colours";
  EXPECT_THAT(result.out, Not(HasSubstr("waiting ms"))) << "the table of collectives needs -v";
  // Other tests may keep the machine busy.
  const bool measured = result.out.find("efficiency not measured reliably: ") == std::string::npos;
  if (measured) {
    EXPECT_THAT(result.out, HasSubstr(" over 5 rounds): a step takes ")) << result.out;
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "mnist_cnn.safetensors"));

  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 3u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["epoch"], i + 1);
    EXPECT_EQ(lines[i]["ranks"], 2);
    EXPECT_GT(lines[i]["seconds"], 0.0);
    EXPECT_GT(lines[i]["images_per_second"], 0.0);
    EXPECT_GT(lines[i]["gradient_megabytes"], 0.0);
    EXPECT_EQ(lines[i].size(), 9u);
    // Every test digit counts once, so the accuracy is so many of them.
    const double right = lines[i]["test_accuracy"].get<double>() * test_size;
    EXPECT_NEAR(right, std::round(right), 1e-9);
  }
  EXPECT_LT(lines[2]["train_loss"], lines[0]["train_loss"]);
  EXPECT_GT(lines[2]["test_accuracy"], 0.9);
  expect_log(lines, measured);
}

// Threads give the bits of processes, begun as SINGA begins them.
TEST_F(MnistCnn, AResumedRunOfProcessesEndsInTheBitsOfThreads) {
  const std::string quiet = data + " --quiet --metrics metrics.jsonl --seed 3";
  const std::string threads = "mnist_multithread";
  const Result silent = alone(threads + " 2" + quiet + " --epochs 3 --checkpoint whole");
  ASSERT_EQ(silent.code, 0) << silent.err;
  EXPECT_THAT(silent.out + silent.err, IsEmpty());
  const auto whole = metrics();
  ASSERT_EQ(whole.size(), 3u);
  const Result first =
      two_ranks(" --quiet --metrics metrics.jsonl --seed 3 --epochs 1 --checkpoint first");
  ASSERT_EQ(first.code, 0);
  EXPECT_THAT(first.out + first.err, IsEmpty());
  // The seed and the learning rate come from the checkpoint.
  const Result rest = run(quoted_launcher + " run -n 2 " + program +
                          " --data data --batch-size 16 --quiet --metrics metrics.jsonl --epochs 3"
                          " --resume first --checkpoint second");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(content(folder / "whole"), content(folder / "second"));
  EXPECT_NE(content(folder / "whole"), content(folder / "first"));

  const auto parts = metrics();
  ASSERT_EQ(parts.size(), whole.size()) << "a resumed run adds its lines";
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (const char* key : {"epoch", "train_loss", "train_accuracy", "test_accuracy"})
      EXPECT_EQ(parts[i][key], whole[i][key]) << "epoch " << i + 1 << ' ' << key;

  const Result none = alone(threads + data);
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("threads is required"));
  EXPECT_THAT(alone(threads + " --help").out, HasSubstr("Start it with: mnist_multithread 2"));
}

TEST_F(MnistCnn, TrainsWithParametersOfBfloat16AndResumes) {
  const std::string flags =
      " --threads 2 --bf16 stochastic --quiet --no-efficiency --metrics metrics.jsonl";
  ASSERT_EQ(one_rank(flags + " --epochs 3 --checkpoint-dir whole").code, 0);
  EXPECT_GT(metrics().at(2)["test_accuracy"], 0.9);
  const auto file = [&](const std::string& run, const char* epoch) {
    return folder / (run + "/checkpoint-00000" + epoch + ".safetensors");
  };
  EXPECT_LT(std::filesystem::file_size(file("whole", "3")), 2 * 2 * 431'080 + 20'000);
  std::filesystem::create_directory(folder / "part");
  std::filesystem::copy_file(file("whole", "2"), file("part", "2"));
  ASSERT_EQ(one_rank(flags + " --epochs 3 --checkpoint-dir part").code, 0);
  EXPECT_EQ(content(file("whole", "3")), content(file("part", "3")));
}

TEST_F(MnistCnn, EveryDistOptionLearns) {
  for (const char* option :
       {"--dist_option half", "--dist-option partialUpdate", "--dist-option sparseTopK --spars 0.1",
        "--dist-option sparseThreshold --spars 0.001", "--strategy fp16 --contiguous --augment"}) {
    const Result result = one_rank(std::string(" --threads 2 --epochs 2 --quiet --no-efficiency "
                                               "--checkpoint '' --metrics metrics.jsonl ") +
                                   option);
    ASSERT_EQ(result.code, 0) << option << result.err;
    const auto lines = metrics();
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_LT(lines[1]["train_loss"], lines[0]["train_loss"]) << option;
    EXPECT_FALSE(std::filesystem::exists(folder / "mnist_cnn.safetensors"));
  }
}

TEST_F(MnistCnn, WrongFlagsAreNamed) {
  for (const char* flag :
       {"--epochs 0", "--batch-size 0", "--lr 0", "--lr 1e999", "--seed -1", "--threads 0",
        "--strategy none", "--dist-option fp8", "--spars 0 --dist-option sparseTopK",
        "--spars 2 --dist-option sparseTopK", "--spars 0.1 --dist-option half"}) {
    const Result result = run(program + " " + flag);
    EXPECT_EQ(result.code, 2) << flag;
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    EXPECT_THAT(result.err, HasSubstr(name)) << flag;
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST_F(MnistCnn, ABarShowsTheLoss) {
  // script gives it a terminal.
  if (run("script --version").code != 0) GTEST_SKIP() << "this machine has no script(1)";
  const Result result =
      run("TERM=xterm script -qec \"stty cols 80 && " + quoted_launcher + " run -n 2 " + program +
          data + " --epochs 1 --no-efficiency --checkpoint ''\" terminal");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(content(folder / "terminal"),
              ContainsRegex("%  loss [0-9]\\.[0-9]{4}  [0-9]+ images/s"));
}

TEST_F(MnistCnn, BadInputIsFoundBeforeTraining) {
  std::filesystem::resize_file(folder / "data" / "t10k-images-idx3-ubyte", 1000);
  std::ofstream(folder / "no_checkpoint") << "something else";
  const std::pair<const char*, const char*> cases[] = {
      {" --data nowhere", "found neither nowhere/train-images-idx3-ubyte nor"},
      {"", "data/t10k-images-idx3-ubyte: offset 4: expected items of at most 1000 bytes"},
      {" --data sound --metrics no/such/m", "--metrics no/such/m: cannot write: No such file"},
      {" --data sound --run-log no_checkpoint/log",
       "no_checkpoint/log: cannot make the folder: Not"},
      {" --data sound --checkpoint no/such/c", "no/such/c: cannot create the file: No such file"},
      {" --data sound --resume no_checkpoint", "no_checkpoint: offset 0: expected a header"}};
  write_digits(folder / "sound", train_size, test_size);
  for (const auto& [flags, complaint] : cases) {
    const std::string data_flag =
        std::string(flags).find("--data") == std::string::npos ? " --data data" : "";
    // Both ranks miss the data, end in any order, and rank 0 says why. Rank 0 alone opens the files
    // of --metrics and --checkpoint.
    const bool of_both = std::string(complaint).starts_with("found neither");
    const bool several = of_both || std::string(complaint).find("no/such/") != std::string::npos;
    const Result result =
        run((several ? quoted_launcher + " run -n 2 " : "") + program + data_flag + flags);
    expect_one_complaint(result, 1, std::string("mnist_cnn: ") + complaint);
    if (of_both) {
      EXPECT_EQ(count(result.err, complaint), 1) << result.err;
      EXPECT_THAT(result.err, AllOf(HasSubstr("lockstep: rank 0 of 2 failed first: "),
                                    HasSubstr("Its error is printed above.")));
    }
    EXPECT_THAT(result.out, Not(HasSubstr("epoch"))) << flags;
  }
}

TEST_F(MnistCnn, OnlyASoundCheckpointWithEpochsLeftIsResumed) {
  ASSERT_EQ(one_rank(" --epochs 1 --quiet").code, 0);
  const Result result = one_rank(" --epochs 1 --resume mnist_cnn.safetensors");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("mnist_cnn.safetensors: 1 epoch is done"),
                                HasSubstr("expected fewer than --epochs 1")));
  std::filesystem::resize_file(folder / "mnist_cnn.safetensors", 5000);
  const Result spoilt = two_ranks(" --epochs 2 --resume mnist_cnn.safetensors --checkpoint other");
  expect_one_complaint(spoilt, 1, "mnist_cnn: mnist_cnn.safetensors: ");
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

}  // namespace
}  // namespace lockstep::testing
