#include "tests/launch/launched.h"

namespace lockstep::testing {
namespace {

/// A machine with two GPUs and a MIG device. An empty value counts as unset for Lockstep's
/// variables.
Launched::Variables with_gpus(const Launched::Variables& more = {}) {
  Launched::Variables variables{{"LOCKSTEP_LIBCUDA", LOCKSTEP_FAKE_CUDA},
                                {"FAKE_CUDA_NAMES", "NVIDIA A|NVIDIA B"},
                                {"LOCKSTEP_DEVICE", ""},
                                {"LOCKSTEP_SHARE_GPUS", ""}};
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

/// Runs ranks that print their rank and what they got.
std::string shown_by_ranks(const Words& options, const Launched::Variables& more = {}) {
  const std::string script =
      "echo $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE visible=${CUDA_VISIBLE_DEVICES-unset} "
      "device=$LOCKSTEP_DEVICE share=$LOCKSTEP_SHARE_GPUS$NCCL_MULTI_RANK_GPU_ENABLE";
  const auto ended = run_lockstep(joined(options, {{"-q", "sh", "-c", script}}), with_gpus(more));
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended.out;
}

class GpuOptions : public ::testing::Test {
 protected:
  // The test's own environment may have the variable.
  void SetUp() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
};

TEST_F(GpuOptions, ReachTheRanks) {
  const struct {
    const char* options;
    const char* shown;
    Launched::Variables more = {};
  } cases[] = {
      // A rank for each GPU, or for each named one.
      {"-n gpus", "0/2 visible=unset device=cuda share="},
      {"-n gpus", "0/1 visible=1 device=cuda share=", {{"CUDA_VISIBLE_DEVICES", "1"}}},
      {"--gpus 1,0", "0/2 visible=1,0 device=cuda share="},
      {"-n gpus --gpus 1", "0/1 visible=1 device=cuda share="},
      {"--gpus GPU-22222222-2222", "0/1 visible=GPU-22222222-2222 device=cuda share="},
      {"--gpus MIG-1", "0/1 visible=MIG-1 device=cuda share="},
      // Of an allotted list.
      {"--gpus 0", "0/1 visible=0 device=cuda share=", {{"CUDA_VISIBLE_DEVICES", "1,0"}}},
      {"--gpus 1",
       "0/1 visible=1 device=cuda share=",
       {{"CUDA_VISIBLE_DEVICES", "GPU-22222222-2222"}}},
      // Shared.
      {"-n 5 --share-gpus", "0/5 visible=unset device=cuda share=1"},
      {"-n 5 --share-gpus=nccl", "0/5 visible=unset device=cuda share=nccl1"},
      {"-n 3 --gpus 1 --share-gpus", "0/3 visible=1 device=cuda share=1"},
      {"-n 3 --gpus 1", "0/3 visible=1 device=cuda share=1", {{"LOCKSTEP_SHARE_GPUS", "1"}}},
      // The device.
      {"-n 3 --device auto", "0/3 visible=unset device=auto share="},
      {"-n 3 --device cpu", "0/3 visible=unset device=cpu share="},
      {"-n 3 --device cuda", "0/3 visible=unset device=cuda share="},
      {"-n gpus --device cuda",
       "0/2 visible=unset device=cuda share=",
       {{"LOCKSTEP_DEVICE", "cpu"}}}};
  for (const auto& [options, shown, more] : cases) {
    EXPECT_EQ(shown_by_ranks(words_of(options), more), concat(shown, '\n')) << options;
  }
  EXPECT_EQ(shown_by_ranks({"-n", "1", "--gpus", "0, 01"}),
            "0/1 visible=0,01 device=cuda share=\n");
}

/// Without these options nothing looks for a GPU, which takes seconds on some machines.
TEST_F(GpuOptions, NoneLooksForNoGpu) {
  const TemporaryFolder folder;
  const auto log = folder / "pids";
  const auto variables = with_gpus({{"FAKE_CUDA_LOG", log.string()}});
  for (const Words& options :
       {Words{"-n", "3"}, Words{"-n", "3", "--device", "cuda"}, Words{"-v", "-n", "1"}}) {
    EXPECT_THAT(run_lockstep(joined(options, {{"true"}}), variables), ends(0, {}, {"GPU"}));
  }
  EXPECT_FALSE(std::filesystem::exists(log));
  EXPECT_EQ(run_lockstep({"-n", "gpus", "true"}, variables).code, 0);
  EXPECT_TRUE(std::filesystem::exists(log));
}

TEST_F(GpuOptions, AreInTheTableOfRanks) {
  const auto one_each =
      run_lockstep({"--gpus", "1,0", "--dry-run", "--bind", "none", "true"}, with_gpus());
  EXPECT_THAT(one_each,
              prints({"  ranks    2\n", "  GPUs     1 (NVIDIA B), 0 (NVIDIA A), one a rank\n",
                      "  CUDA_VISIBLE_DEVICES      1,0\n",
                      "  rank  cpus  GPU\n"
                      "  0     any   1 (NVIDIA B)\n"
                      "  1     any   0 (NVIDIA A)\n"}));
  const auto shared =
      run_lockstep({"-n", "3", "--share-gpus", "--dry-run", "--bind", "none", "true"},
                   with_gpus({{"CUDA_VISIBLE_DEVICES", "0,1"}}));
  EXPECT_THAT(shared.out, AllOf(HasSubstr(", shared by the ranks\n"),
                                ContainsRegex("  CUDA_VISIBLE_DEVICES +0,1 +\\(yours\\)\n"),
                                HasSubstr("  LOCKSTEP_SHARE_GPUS       1\n"),
                                HasSubstr("  2     any   0 (NVIDIA A)")));
}

TEST_F(GpuOptions, InDoctor) {
  auto variables = with_gpus({{"LOCKSTEP_NCCL", LOCKSTEP_FAKE_CUDA},
                              {"FAKE_NCCL_VERSION", "21900"},
                              {"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_THAT(run_cli({"doctor"}, variables),
              prints({"\nGPUs\n", "for CUDA 13.0", "  GPU 1   NVIDIA B, 2.0 GiB\n",
                      concat("  NCCL    2.19.0, ", LOCKSTEP_FAKE_CUDA)},
                     {"too old"}));
  variables["FAKE_NCCL_VERSION"] = "21805";
  variables["FAKE_CUDA_NAMES"] = "";
  const auto missing = run_cli({"doctor"}, variables);
  EXPECT_EQ(missing.code, 0) << "training on the CPU works";
  EXPECT_THAT(missing.out,
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES=1 shows no GPU"), HasSubstr("nvidia-smi -L"),
                    HasSubstr("2.18.5, "), HasSubstr("too old, 2.19 or newer")));
}

TEST_F(GpuOptions, WrongOnesAreOneClearError) {
  std::vector<Refused> wrong{
      {"-n 3 --gpus 0,1", {"got 3 ranks for 2 GPUs: 0 (NVIDIA A), 1 (NVIDIA B)", "--share-gpus"}},
      {"-n 2 --gpus 1", {"got 2 ranks for 1 GPU: 1 (NVIDIA B)", "Start 1 rank (-n gpus)"}},
      {"--gpus ''", {"--gpus : found no GPU", "CUDA_VISIBLE_DEVICES= shows no GPU"}},
      {"--gpus 0,", {"gpus: got '' in '0,'"}},
      {"--gpus 1,0-1",
       {"gpus: got '0-1' in '1,0-1', expected indices such as 0,1", "nvidia-smi -L"}},
      {"--gpus -1", {"gpu"}},
      {"--gpus 0,2", {"--gpus 0,2: found 1 GPU: ", "the list ends at '2', which names no GPU"}},
      {"--gpus 99999999999999999999", {"99999999999999999999 shows no GPU"}},
      {"--gpus GPU-77777777-7777", {"=GPU-77777777-7777 shows no GPU"}},
      {"-n 2 --share-gpus=mpi", {"--share-gpus: mpi not in {1,nccl}"}},
      {"--gpus 1,0,01", {"=1,0,01 shows no GPU", "each once"}},
      {"--gpus 0,GPU-22222222-2222", {"found 1 GPU: ", "the list ends at 'GPU-22222222-2222'"}},
      {"--gpus MIG-1,MIG-2", {"the list ends at 'MIG-2'", "a second MIG device"}},
      {"--gpus 0",
       {"gpus: got 0, expected some of CUDA_VISIBLE_DEVICES=1 of the environment"},
       {{"CUDA_VISIBLE_DEVICES", "1"}}},
      {"-n gpus",
       {"-n gpus: found no GPU: NVIDIA driver: CUDA_VISIBLE_DEVICES= shows no GPU",
        ". To train on the CPU, leave out", "-n 2"},
       {{"CUDA_VISIBLE_DEVICES", ""}}},
      {"-n 2 --share-gpus",
       {"--share-gpus: found no GPU: NVIDIA driver: it finds no GPU; run nvidia-smi"},
       {{"FAKE_CUDA_NAMES", ""}}},
      {"--gpus 0",
       {"--gpus 0: found no GPU: ", ": cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"},
       {{"FAKE_CUDA_RESULT", "803"}}},
      {"--gpus 0 --device cpu", {"device: got cpu together with --gpus 0", "Leave one out"}},
      {"-n gpus",
       {"device: got LOCKSTEP_DEVICE=cpu together with -n gpus"},
       {{"LOCKSTEP_DEVICE", "cpu"}}},
      {"-n 2 --device tpu", {"--device", "tpu", "cuda"}},
      {"-n gpu", {"--ranks: got 'gpu'", "or gpus"}}};
  for (auto& one : wrong) {
    one.arguments += " echo started";
    one.variables = with_gpus(one.variables);
  }
  expect_refused(run_command({}), wrong);
}

}  // namespace
}  // namespace lockstep::testing
