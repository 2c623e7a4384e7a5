#include "launch/gpus.h"

#include <unistd.h>

#include <cstdint>
#include <sstream>

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
  EXPECT_FALSE(anything_left());
}

/// The fake driver reads the variable as CUDA's documentation says.
class VisibleGpus : public ::testing::Test {
 protected:
  std::vector<Gpu> shown(const std::string& visible) { return find_gpus(sources_, visible).gpus; }

  Variable names_{"FAKE_CUDA_NAMES", "A|B|C|D"};
  GpuSources sources_{.driver = LOCKSTEP_FAKE_CUDA};
};

TEST_F(VisibleGpus, AreListedByTheDriver) {
  const auto found = find_gpus(sources_, std::nullopt);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.driver, "13.0");
  EXPECT_THAT(ids(found.gpus), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(names(found.gpus), ElementsAre("A", "B", "C", "D"));
  EXPECT_EQ(found.gpus.at(1).uuid, "22222222-2222-2222-2222-222222222222");
  EXPECT_EQ(found.gpus.at(1).memory, std::uint64_t{2} << 30);
}

/// visible_gpus(), which stands in for a driver that cannot be loaded, selects as the driver does.
TEST_F(VisibleGpus, HaveTheEntryAsIdAndAreSelectedAsByTheDriver) {
  EXPECT_THAT(ids(shown("2, 0")), ElementsAre("2", "0"));
  EXPECT_THAT(names(shown("2, 0")), ElementsAre("C", "A"));
  EXPECT_THAT(ids(shown("GPU-44444444")), ElementsAre("GPU-44444444"));
  const auto all = find_gpus(sources_, std::nullopt).gpus;
  const std::string third = "GPU-33333333-3333-3333-3333-333333333333";
  std::istringstream lists(
      "0|3|2,1|0,1,2,3| 1 , 3|| "
      "|4|-1|0,2,-1,1|1,7,0|0,0|1,2,1|x|1,x,2|2abc,1|,1|1,,2|GPU-11111111,GPU-33333333|GPU-"
      "33333333-3333,1|1,GPU-33333333-3333|GPU-55555555-5555|GPU-|GPU-22222222-2222,GPU-22222222-"
      "2222");
  for (std::string visible; std::getline(lists, visible, '|');) {
    const auto expected = shown(visible);
    const auto selected = visible_gpus(all, visible);
    EXPECT_EQ(names(selected), names(expected)) << visible;
    EXPECT_EQ(ids(selected), ids(expected)) << visible;
  }
  EXPECT_THAT(names(visible_gpus(all, third)), ElementsAre("C"));
  EXPECT_THAT(ids(visible_gpus(all, "MIG-1,MIG-2")), ElementsAre("MIG-1"));
}

TEST_F(VisibleGpus, AUuidThatBeginsSeveralNamesNoneAndFewerThanNamedAreExplained) {
  const std::vector<Gpu> all{{.id = "0", .uuid = "ab10"}, {.id = "1", .uuid = "ab20"}};
  EXPECT_THAT(visible_gpus(all, "GPU-ab"), IsEmpty());
  EXPECT_THAT(ids(visible_gpus(all, "GPU-AB2")), ElementsAre("GPU-AB2"));
  EXPECT_EQ(
      find_gpus(sources_, "2,7,0").problem,
      "CUDA_VISIBLE_DEVICES=2,7,0 shows 1 GPU: the list ends at '7', which names no GPU, or a "
      "second MIG device");
  EXPECT_EQ(find_gpus(sources_, "2,0").problem, "");
}

TEST(NoGpu, OfADriverThatFailsIsExplained) {
  const GpuSources sources{.driver = LOCKSTEP_FAKE_CUDA, .limit = 1s};
  const auto problem_with = [&](const char* result) {
    const Variable variable("FAKE_CUDA_RESULT", result);
    const auto found = find_gpus(sources, std::nullopt);
    EXPECT_THAT(found.gpus, IsEmpty());
    return found.problem;
  };
  EXPECT_THAT(problem_with("803"),
              AllOf(HasSubstr("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
                    HasSubstr("Restart the machine")));
  EXPECT_THAT(problem_with("3"), HasSubstr("cuInit: error (3)"));
  EXPECT_THAT(problem_with("hang"), HasSubstr("no answer within 1 s"));
  EXPECT_THAT(problem_with("crash"), HasSubstr("ended early: SIGABRT"));
  EXPECT_THAT(find_gpus({.driver = "libc.so.6"}, std::nullopt).problem,
              HasSubstr("it has no function cuInit"));
  EXPECT_FALSE(anything_left());
}

/// A process that has called cuInit() cannot use CUDA in its forked children.
TEST(Driver, IsNeverInitialisedInThisProcess) {
  const TemporaryFolder folder;
  const auto log = folder / "pids";
  const Variable variable("FAKE_CUDA_LOG", log.c_str());
  const Variable one("FAKE_CUDA_NAMES", "A");
  EXPECT_EQ(find_gpus({.driver = LOCKSTEP_FAKE_CUDA}, std::nullopt).gpus.size(), 1U);
  const auto pids = content(log);
  EXPECT_NE(pids, "");
  EXPECT_NE(pids, std::to_string(getpid()) + "\n");
}

class DeviceFiles : public ::testing::Test {
 protected:
  void add(const std::string& minor) {
    std::filesystem::create_directories(sources_.devices);
    std::ofstream(sources_.devices / ("nvidia" + minor));
  }
  void describe_gpu(const std::string& address, const std::string& minor,
                    const std::string& model) {
    const auto directory = sources_.proc / "gpus" / address;
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "information")
        << "Model: \t\t " << model << "\nIRQ:   \t\t 48\nGPU UUID: \t GPU-" << minor
        << "0000000-0000-0000-0000-000000000000\nDevice Minor: \t " << minor << '\n';
  }

  TemporaryFolder folder_;
  GpuSources sources_{
      .driver = "/nonexistent/libcuda.so.1", .devices = folder_ / "dev", .proc = folder_ / "proc"};
};

TEST_F(DeviceFiles, AreCountedWithoutTheDriversLibrary) {
  const auto none = find_gpus(sources_, std::nullopt);
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_THAT(none.problem, AllOf(HasSubstr("no NVIDIA driver: /nonexistent/libcuda.so.1: "),
                                  HasSubstr("install the driver")));
  for (const char* name : {"0", "1", "ctl", "-uvm", "-modeset"}) add(name);
  const auto found = find_gpus(sources_, std::nullopt);
  EXPECT_THAT(ids(found.gpus), ElementsAre("0", "1"));
  EXPECT_THAT(found.problem, HasSubstr("counted by the files in "));
  EXPECT_THAT(ids(find_gpus(sources_, "1,0").gpus), ElementsAre("1", "0"));
  EXPECT_THAT(find_gpus(sources_, "").problem, HasSubstr("CUDA_VISIBLE_DEVICES is empty"));
}

TEST_F(DeviceFiles, AreDescribedByTheKernelModule) {
  for (const char* name : {"0", "1"}) add(name);
  describe_gpu("0000:81:00.0", "0", "NVIDIA A");
  describe_gpu("0000:01:00.0", "1", "NVIDIA B");
  describe_gpu("0000:c1:00.0", "2", "of another container");
  const auto found = find_gpus(sources_, std::nullopt);
  EXPECT_THAT(names(found.gpus), ElementsAre("NVIDIA B", "NVIDIA A")) << "in PCI order";
  EXPECT_THAT(names(find_gpus(sources_, "GPU-00").gpus), ElementsAre("NVIDIA A"));
}

TEST(NcclVersion, IsReadOrMissesTheLibrary) {
  EXPECT_EQ(detail::nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(detail::nccl_version_text(20900), "2.9.0");
  EXPECT_EQ(detail::nccl_version_text(22907), "2.29.7");
  const auto problem_with = [](const char* library) {
    const Variable variable("LOCKSTEP_NCCL", library);
    EXPECT_EQ(find_nccl().version, "");
    return find_nccl().problem;
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
  EXPECT_EQ(find_nccl(libtorch).version, "2.28.9");
  std::filesystem::create_directory(folder / "links");
  std::filesystem::create_directory_symlink(folder / "torch", folder / "links" / "torch");
  EXPECT_EQ(find_nccl(folder / "links" / "torch" / "lib").version, "2.28.9");
  const Variable named("LOCKSTEP_NCCL", "/nonexistent/libnccl.so");
  EXPECT_EQ(find_nccl(libtorch).version, "");
}

}  // namespace
}  // namespace lockstep::launch
