#include "tests/examples/program_run.h"

// --config of the examples, and --ema and --patience of mnist_cnn.

namespace lockstep::testing {
namespace {

class ConfigFiles : public ProgramRun {
 protected:
  ConfigFiles() { write_digits(folder / "data", 67, 13); }
  void write(const std::string& text) const { std::ofstream(folder / "settings.toml") << text; }
};

TEST_F(ConfigFiles, SetWhatTheCommandLineDoesNot) {
  write(
      "# settings of a small run\n"
      "epochs = 3\n"
      "batch-size = 16\n"
      "data = \"data\"\n"
      "strategy = \"topk:0.5\"\n"
      "checkpoint = \"\"\n"
      "metrics = \"metrics.jsonl\"\n"
      "no-efficiency = true\n"
      "trace = false  # of no \"use\"\n"
      "augment = false\n");
  const Result result = two_ranks("mnist_cnn --config settings.toml --epochs 2");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(metrics().size(), 2u) << "the command line takes precedence";
  EXPECT_EQ(count(result.out, "epoch 2/2"), 1) << result.out;
  EXPECT_FALSE(std::filesystem::exists(folder / "mnist_cnn.safetensors"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(ConfigFiles, SetArgumentsAndThreads) {
  write("total_epochs = 2\nsave_every = 1\nbatch_size = 16\ndata = \"data\"\n");
  for (const std::string program : {"ddp_trainer", "single_trainer"}) {
    std::filesystem::remove(folder / "snapshot.safetensors");
    const Result result = alone(program + " --config settings.toml --metrics metrics.jsonl");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(values("train_loss").size(), 2u) << program;
  }
  write("threads = 2\nimages = 16\ndata = \"data\"\n");
  const Result threads = alone("gradient_proof --config settings.toml");
  EXPECT_THAT(threads.out, HasSubstr("against that of 2 ranks")) << threads.err;
}

TEST_F(ConfigFiles, ErrorsHaveTheNamesOfFileAndKey) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"epohcs = 2\n", "settings.toml: epohcs: unknown option, did you mean epochs?"},
      {"nonsense = 2\n", "settings.toml: nonsense: unknown option"},
      {"config = \"other\"\n", "settings.toml: config: unknown option"},
      {"checkpoint = \"a\"\ncheckpoint-dir = \"b\"\n", "settings.toml: --checkpoint"},
      {"epochs = 0\n", "settings.toml: --epochs: Value 0 not in range"},
      {"epochs = two\n", "settings.toml: --epochs: Value two"},
      {"epochs = 2\nlr = 1\nepochs = 3\n", "settings.toml: epochs: occurs twice"},
      {"[train]\nepochs = 2\n", "settings.toml: [train]: expected no sections"},
      {"data = \"run#2\"\n", "settings.toml: line 1: a value in this file cannot contain #"},
      {"augment = perhaps\n", "settings.toml: "}};
  for (const auto& [text, said] : cases) {
    write(text);
    const std::string command = "mnist_cnn --config settings.toml";
    const Result result = text.starts_with("epohcs") ? two_ranks(command) : alone(command);
    EXPECT_EQ(result.code, 2) << text << result.err;
    EXPECT_EQ(complaints(result.err, said), 1) << text << result.err;
    EXPECT_EQ(count(result.err, "settings.toml"), 1) << text << result.err;
    EXPECT_THAT(result.out, IsEmpty()) << text;
  }
}

TEST_F(ConfigFiles, MustBeReadable) {
  std::filesystem::create_directory(folder / "folder");
  for (const auto& [path, cause] : {std::pair("nowhere.toml", "No such file or directory"),
                                    std::pair("folder", "Is a directory")}) {
    const std::string said = std::string("--config ") + path + ": cannot read: " + cause;
    expect_one_complaint(alone(std::string("single_trainer --config ") + path + " 1 1"), 2, said);
    if (cause[0] == 'N')
      expect_one_complaint(two_ranks(std::string("regression --config ") + path), 2, said);
  }
}

TEST_F(ConfigFiles, EveryRankMustReadTheSame) {
  write("backend = \"host\"\n");
  std::filesystem::create_directory(folder / "other");
  std::ofstream(folder / "other" / "settings.toml") << "backend = \"auto\"\n";
  const Result result =
      run(quoted_launcher + " run -n 3 sh -c '[ $LOCKSTEP_RANK = 2 ] && cd other; exec " + bin +
          "regression --config settings.toml'");
  expect_one_complaint(result, 1,
                       "regression: --config settings.toml: rank 2 read other contents than rank "
                       "0: copy the file to all hosts");
}

TEST_F(ConfigFiles, AverageAndPatienceAreResumed) {
  write(
      "batch-size = 16\ndata = \"data\"\nmetrics = \"metrics.jsonl\"\nthreads = 2\n"
      "no-efficiency = true\nema = 0.5\npatience = 2\nlr = 1e-12\n");
  const std::string program = "mnist_cnn --config settings.toml --checkpoint-dir ";
  // Nothing is learned: the first accuracy stays the best one.
  const Result whole = alone(program + "whole");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(count(whole.out, "stopped: no better test accuracy in 2 epochs\n"), 1) << whole.out;
  EXPECT_EQ(metrics().size(), 3u);

  ASSERT_EQ(alone(program + "parts --epochs 2").code, 0);
  const Result resumed = alone(program + "parts");
  EXPECT_EQ(count(resumed.out, "stopped: no better test accuracy in 2 epochs\n"), 1) << resumed.err;
  EXPECT_EQ(metrics().size(), 3u) << "one epoch more";
  EXPECT_EQ(content(folder / "whole/checkpoint-000003.safetensors"),
            content(folder / "parts/checkpoint-000003.safetensors"));
  const Result again = alone(program + "parts");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(metrics().size(), 3u) << "a run that has stopped trains no more";
  // An average needs equal replicas.
  expect_one_complaint(
      two_ranks("mnist_cnn --data data --ema 0.5 --strategy local_sgd:period=4"), 1,
      "mnist_cnn: --ema: got --strategy local_sgd:period=4, with which the averages of the "
      "ranks differ");
}

TEST_F(ConfigFiles, LogOfARunKeepsItsLinesOnAnotherNumberOfRanks) {
  write(
      "batch-size = 16\ndata = \"data\"\nno-efficiency = true\ncheckpoint-dir = \"run\"\n"
      "log-dir = \"log\"\n");
  ASSERT_EQ(alone("mnist_cnn --config settings.toml --epochs 2").code, 0);
  const auto before = content(folder / "log/metrics.jsonl");
  ASSERT_EQ(two_ranks("mnist_cnn --config settings.toml --epochs 3").code, 0);
  EXPECT_THAT(content(folder / "log/metrics.jsonl"), StartsWith(before));
  EXPECT_EQ(count(content(folder / "log/metrics.jsonl"), "train_loss_sum"), 3);
  EXPECT_FALSE(std::filesystem::exists(folder / "log/discarded.jsonl"));
}

}  // namespace
}  // namespace lockstep::testing
