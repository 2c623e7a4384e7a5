#include "launch/gpus.h"

#include <unistd.h>

#include <cstdint>

#include "core/nccl_version.h"
#include "launch/system.h"
#include "tests/launch/launched.h"
#include "tests/variable.h"

namespace lockstep::inline v0_2::launch {
namespace {

using namespace testing;
using namespace std::chrono_literals;

std::vector<std::string> ids(const std::vector<Gpu>& gpus, std::string Gpu::*field = &Gpu::id) {
  std::vector<std::string> found;
  for (const auto& gpu : gpus) found.push_back(gpu.*field);
  return found;
}
std::vector<std::string> names(const std::vector<Gpu>& gpus) { return ids(gpus, &Gpu::name); }

TEST(Probe, ReturnsTextOfAnotherProcessOrSaysWhyThereIsNone) {
  EXPECT_NE(probe([] { return std::to_string(getpid()); }, 60s).text, std::to_string(getpid()));
  const std::string longer_than_a_pipe(1 << 20, 'x');
  EXPECT_EQ(probe([&] { return longer_than_a_pipe; }, 60s).text, longer_than_a_pipe);
  const auto thrown = []() -> std::string { throw std::runtime_error("no such thing"); };
  EXPECT_EQ(probe(thrown, 60s).problem, "no such thing");
  const auto ended = []() -> std::string { _exit(7); };
  EXPECT_EQ(probe(ended, 60s).problem, "ended early: exit code 7");
  const auto hung = []() -> std::string {
    for (;;) pause();
  };
  EXPECT_EQ(probe(hung, 1s).problem, "no answer within 1 s");
  EXPECT_FALSE(anything_left());
}

/// The fake driver reads the variable as CUDA's documentation says.
class VisibleGpus : public ::testing::Test {
 protected:
  Variable names_{"FAKE_CUDA_NAMES", "A|B|C|D"};
  Variable driver_{"LOCKSTEP_LIBCUDA", LOCKSTEP_FAKE_CUDA};
  Variable all_{"CUDA_VISIBLE_DEVICES", nullptr};
};

TEST_F(VisibleGpus, AreListedByTheDriver) {
  const auto found = find_gpus();
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.driver, "13.0");
  EXPECT_THAT(ids(found.gpus), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(names(found.gpus), ElementsAre("A", "B", "C", "D"));
  EXPECT_EQ(found.gpus.at(1).uuid, std::string(32, '2'));
  EXPECT_EQ(found.gpus.at(1).memory, std::uint64_t{2} << 30);
}

TEST_F(VisibleGpus, HaveTheEntryAsIdAndFewerThanNamedAreExplained) {
  EXPECT_THAT(ids(find_gpus("2, 0").gpus), ElementsAre("2", "0"));
  EXPECT_THAT(names(find_gpus("2, 0").gpus), ElementsAre("C", "A"));
  EXPECT_THAT(ids(find_gpus("GPU-44444444").gpus), ElementsAre("GPU-44444444"));
  EXPECT_EQ(
      find_gpus("2,7,0").problem,
      "CUDA_VISIBLE_DEVICES=2,7,0 shows 1 GPU: the list ends at '7', which names no GPU, or a "
      "second MIG device");
  EXPECT_EQ(find_gpus("2,0").problem, "");
  const Variable own("CUDA_VISIBLE_DEVICES", "3");
  EXPECT_THAT(ids(find_gpus().gpus), ElementsAre("3"));
}

TEST_F(VisibleGpus, OfADriverThatFailsAreExplained) {
  const auto problem_with = [](const char* result) {
    const Variable variable("FAKE_CUDA_RESULT", result);
    const auto found = find_gpus();
    EXPECT_THAT(found.gpus, IsEmpty());
    return found.problem;
  };
  EXPECT_THAT(problem_with("803"),
              AllOf(HasSubstr("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
                    HasSubstr("; run nvidia-smi")));
  EXPECT_THAT(problem_with("3"), HasSubstr("cuInit: unknown error (3)"));
  EXPECT_THAT(problem_with("crash"), HasSubstr("ended early: SIGABRT"));
  const Variable other("LOCKSTEP_LIBCUDA", "libc.so.6");
  EXPECT_THAT(find_gpus().problem, HasSubstr("NVIDIA driver: the library has no function cuInit"));
  const Variable missing("LOCKSTEP_LIBCUDA", "/nonexistent/libcuda.so.1");
  EXPECT_THAT(find_gpus().problem, AllOf(HasSubstr("NVIDIA driver: /nonexistent/libcuda.so.1: "),
                                         HasSubstr("install the driver")));
  EXPECT_FALSE(anything_left());
}

/// A process that has called cuInit() cannot use CUDA in its forked children.
TEST_F(VisibleGpus, InitialiseNoDriverInThisProcess) {
  const TemporaryFolder folder;
  const auto log = folder / "pids";
  const Variable variable("FAKE_CUDA_LOG", log.c_str());
  EXPECT_EQ(find_gpus().gpus.size(), 4U);
  const auto pids = content(log);
  EXPECT_NE(pids, "");
  EXPECT_NE(pids, std::to_string(getpid()) + "\n");
}

TEST(NcclVersion, IsReadOrMissesTheLibrary) {
  EXPECT_EQ(detail::nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(detail::nccl_version_text(20900), "2.9.0");
  EXPECT_EQ(detail::nccl_version_text(22907), "2.29.7");
  const auto problem_with = [](const char* library) {
    const Variable variable("LOCKSTEP_NCCL", library);
    return nccl_text();
  };
  EXPECT_THAT(problem_with("/nonexistent/libnccl.so"),
              AllOf(HasSubstr("not found: /nonexistent/libnccl.so"), HasSubstr("LOCKSTEP_NCCL")));
  EXPECT_THAT(problem_with("libc.so.6"), HasSubstr("no function ncclGetVersion"));
  EXPECT_THAT(problem_with(LOCKSTEP_FAKE_CUDA), HasSubstr("ncclGetVersion: error 1"));
}

TEST(NcclVersion, OfTheLibraryOfLibTorchsPackages) {
  const TemporaryFolder folder;
  const auto libtorch = folder / "torch" / "lib";
  const auto packaged = folder / "nvidia" / "nccl" / "lib";
  std::filesystem::create_directories(libtorch);
  std::filesystem::create_directories(packaged);
  std::filesystem::create_symlink(LOCKSTEP_FAKE_CUDA, packaged / "libnccl.so.2");
  const Variable version("FAKE_NCCL_VERSION", "22809");
  EXPECT_THAT(nccl_text(libtorch), StartsWith("2.28.9, "));
  std::filesystem::create_directory(folder / "links");
  std::filesystem::create_directory_symlink(folder / "torch", folder / "links" / "torch");
  EXPECT_THAT(nccl_text(folder / "links" / "torch" / "lib"), StartsWith("2.28.9, "));
  const Variable named("LOCKSTEP_NCCL", "/nonexistent/libnccl.so");
  EXPECT_THAT(nccl_text(libtorch), StartsWith("not found: /nonexistent/"));
}

}  // namespace
}  // namespace lockstep::launch
