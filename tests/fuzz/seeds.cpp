// Writes the seeds of the corpora: fuzz_seeds FOLDER. Inputs that once broke a rule lie beside them
// under names of their own, and stay.
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "comm/control/connection.h"
#include "comm/control/offer.h"
#include "formats/pickle.h"
#include "lockstep/datasets.h"
#include "lockstep/model_files.h"
#include "profile/trace.h"
#include "record/run.h"
#include "record/scalar.h"
#include "tests/jpeg_file.h"
#include "tests/png_file.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using namespace std::string_literals;
using testing::jpeg_file;
using testing::png_file;
using testing::PngColour;

class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const char* name) : folder_(root / name) {
    std::filesystem::create_directories(folder_);
  }
  void add(const char* name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }

 private:
  std::filesystem::path folder_;
};

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string compressed(const std::string& bytes) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "packed").string();
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return content_of(path);
}

void control_frames(const Corpus& corpus) {
  using namespace control;
  Hello hello{.rank = 1, .size = 2};
  set_text(hello.version, "0.1.0");
  set_text(hello.host, "b");
  Greeting greeting{.heartbeat = 2000};
  set_text(greeting.host, "a");
  const std::string start =
      encode({.kind = Kind::hello, .payload = control::bytes_of(hello)}) +
      encode({.kind = Kind::accepted, .payload = control::bytes_of(greeting)});
  const std::string heartbeat = encode({.kind = Kind::heartbeat});
  corpus.add("life", '\x07' + start + encode({.kind = Kind::all_here}) + heartbeat + heartbeat +
                         encode({.kind = Kind::left}));
  corpus.add("failure", '\0' + encode(failure_frame({.text = "rank 1 on host b has ended"})));
  corpus.add("timeout",
             '\xff' + heartbeat +
                 encode(failure_frame({.kind = Failure::Kind::timeout, .text = "waited"})));
  corpus.add("refused", '\x03' + encode({.kind = Kind::refused, .payload = "another world"}));
  corpus.add("long", '\x80' + encode({.kind = Kind::failed, .payload = std::string(4096, 'x')}));
  std::string longer = encode({.kind = Kind::failed, .payload = std::string(4096, 'x')}) + 'x';
  ++longer[6];  // the low byte of its length
  corpus.add("longer", '\x80' + longer);
  corpus.add("cut", '\x01' + heartbeat + heartbeat.substr(0, 6));
  corpus.add("foreign", "\x10GET / HTTP/1.1\r\n\r\n");
}

void idx_arrays(const Corpus& corpus) {
  const std::string labels = "\0\0\x08\x01\0\0\0\x05\x01\x02\x03\x04\x05"s;
  const std::string images = "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03"s + "abcdefghijkl";
  corpus.add("labels", '\0' + labels);
  corpus.add("images", '\x02' + images);
  corpus.add("images.gz", '\x02' + compressed(images));
  corpus.add("empty", "\x01\0\0\x08\x02\0\0\0\0\0\0\0\x02"s);
  corpus.add("huge", "\0\0\0\x08\x01\xff\xff\xff\xff\x01"s);
  corpus.add("huge.gz", '\0' + compressed("\0\0\x08\x01\xff\xff\xff\xff\x01"s));
}

void cifar10_files(const Corpus& corpus) {
  const Cifar10 data = coloured_shapes(1, 0);
  corpus.add("one", '\x01' + std::string(1, static_cast<char>(data.targets().item<int>())) +
                        std::string(static_cast<const char*>(data.images().const_data_ptr()),
                                    data.images().nbytes()));
  corpus.add("two", '\x01' + std::string(2 * 3073, '\x03'));
  corpus.add("short", "\x01\x09"s + std::string(100, '\0'));
}

void images(const Corpus& corpus) {
  std::string ramp;
  for (int i = 0; i < 9 * 10 * 4; ++i) ramp += static_cast<char>(i * 7 / 10);
  corpus.add("rgb.jpg", jpeg_file(9, 10, JCS_RGB, ramp.substr(0, 9 * 10 * 3)));
  corpus.add("gray.jpg", jpeg_file(9, 10, JCS_GRAYSCALE, ramp.substr(0, 9 * 10)));
  corpus.add("cmyk.jpg", jpeg_file(9, 10, JCS_CMYK, ramp));
  corpus.add("rgb.png", png_file(9, 10, PngColour::rgb, ramp.substr(0, 9 * 10 * 3)));
  corpus.add("gray.png", png_file(9, 10, PngColour::gray, ramp.substr(0, 9 * 10)));
  corpus.add("rgba.png", png_file(9, 10, PngColour::rgba, ramp));
  corpus.add("deep.png", png_file(3, 2, PngColour::rgb, ramp.substr(0, 3 * 2 * 6), "", 16));
  corpus.add("palette.png", png_file(2, 2, PngColour::palette, "\0\x01\x01\0"s, "abcxyz"));
}

void safetensors_files(const Corpus& corpus) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "file";
  const auto written = [&](const safetensors::Content& content) {
    safetensors::write(path, content);
    return content_of(path);
  };
  corpus.add("all", written({.tensors = {{"weight", at::arange(6, at::kFloat).view({2, 3})},
                                         {"half", at::arange(3, at::kHalf)},
                                         {"steps", at::arange(2, at::kLong)},
                                         {"mask", at::zeros({3}, at::kBool)},
                                         {"none", at::zeros({0, 4}, at::kDouble)}},
                             .metadata = {{"epoch", "3"}}}));
  corpus.add("empty", written({}));
  const auto foreign = [](const std::string& header, const std::string& values) {
    return bytes_of(std::uint64_t{header.size()}) + header + values;
  };
  corpus.add("foreign", foreign(R"({"w":{"dtype":"I16","shape":[2,1],"data_offsets":[0,4]},)"
                                R"("b":{"dtype":"BF16","shape":[],"data_offsets":[4,6]},)"
                                R"("__metadata__":{"format":"pt"}})",
                                "abcdef"));
  corpus.add("hole", foreign(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc"));
}

c10::IValue state_dict() {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(std::int64_t{1} << 40);
  list.push_back(-0.5);
  const at::Tensor weight = at::arange(6, at::kFloat).view({2, 3});
  dict.insert("weight", weight);
  dict.insert("tied", weight);
  dict.insert("bias", at::zeros({2}, at::kBFloat16));
  dict.insert("name", std::string("net"));
  dict.insert(std::int64_t{7}, list);
  dict.insert("flags", c10::ivalue::Tuple::create({true, c10::IValue(), std::int64_t{-1}}));
  return dict;
}

std::string record(char kind, const std::string& content) {
  return kind + bytes_of(static_cast<std::uint16_t>(content.size())) + content;
}

void torch_files(const Corpus& corpus) {
  const testing::TemporaryFolder folder;
  const auto written = [&](const c10::IValue& value) {
    write_torch_file(folder / "file", value);
    return content_of(folder / "file");
  };
  corpus.add("state_dict.pt", written(state_dict()));
  corpus.add("tensor.pt", written(at::arange(3, at::kInt)));
  corpus.add("number.pt", written(std::int64_t{42}));
  std::vector<at::Tensor> storages;
  std::string records = "r" + record('p', detail::pickle(state_dict(), storages));
  for (std::size_t key = 0; key < storages.size(); ++key)
    records +=
        record(static_cast<char>('0' + key),
               {static_cast<const char*>(storages[key].const_data_ptr()), storages[key].nbytes()});
  corpus.add("records", records + record('b', "little"));
  storages.clear();
  corpus.add("odd", "r" + record('p', detail::pickle(at::zeros({1}, at::kFloat), storages)) +
                        record('0', "1234567"));
  corpus.add("big_endian", "r" + record('p', "\x80\x02N.") + record('b', "big"));
  corpus.add("script", "r" + record('c', "\x80\x02N."));
}

void pickles(const Corpus& corpus) {
  std::vector<at::Tensor> storages;
  corpus.add("state_dict", detail::pickle(state_dict(), storages));
  corpus.add("module",
             "\x80\x02"
             "cmodels\nNet\n)R.");
  corpus.add("memo", "\x80\x02]q\0(K\x01h\0e."s);
  corpus.add("shared", "\x80\x02(]q\0h\0h\0t."s);
  corpus.add("parameter",
             "\x80\x02"
             "ctorch._utils\n_rebuild_parameter\n"
             "(ctorch._utils\n_rebuild_tensor_v2\n"
             "((X\x07\0\0\0storagectorch\nByteStorage\nX\x01\0\0\0kX\x03\0\0\0cpuK\x06tQ"
             "K\x01K\x02K\x02\x86K\x03K\x01\x86\x89"
             "ccollections\nOrderedDict\n)RtR"
             "\x89"
             "ccollections\nOrderedDict\n)RtR."s);
  corpus.add("negative",
             "\x80\x02"
             "ctorch._utils\n_rebuild_tensor_v2\n"
             "((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0kX\x03\0\0\0cpuK\x01tQ"
             "K\0J\0\0\0\x20\x85K\0\x85\x89}}X\x03\0\0\0neg\x88stR."s);
  corpus.add("others",
             "\x80\x02}(K\x01"
             "ccollections\nCounter\n}K\x05K\x02s\x85RK\x02"
             "ctorch\ndevice\nX\x04\0\0\0cudaK\x01\x86RK\x03"
             "ctorch\nint8\nK\x04]}K\x05"
             "cm\nf\n)\x81}bsau."s);
  corpus.add("deep", "\x80\x02" + std::string(100, ']') + std::string(99, 'a') + '.');
}

void run_records(const Corpus& corpus) {
  using namespace record;
  const std::vector<Scalar> scalars{{"train_loss", 0.5}, {"test_accuracy", 0.97}};
  corpus.add("metrics", "m" + metrics_line(10, 1.5, scalars) + metrics_line(20, 3, scalars) +
                            R"({"step":30,"train_loss":null})"
                            "\n"
                            R"({"step":40,"tra)");
  corpus.add("markup", "m" + metrics_line(1, 1, std::vector<Scalar>{{"a<b>&\"c'\"_loss", 1}}) +
                           metrics_line(2, 2, std::vector<Scalar>{{"a<b>&\"c'\"_loss", 2}}) +
                           metrics_line(2, 2, std::vector<Scalar>{{"<i>", 2}}));
  const RankInterval rank{
      .seconds = 2, .waiting = 0.5, .working = 0.25, .bytes = 10, .dense_bytes = 99};
  corpus.add("intervals",
             "l" + interval_line({.step = 10, .steps = 10, .elapsed = 1, .ranks = {rank, rank}}) +
                 interval_line({.step = 20, .steps = 10, .elapsed = 2, .ranks = {rank, rank}}));
  corpus.add("environment",
             R"(e{"lockstep":"0.1.0","ranks":2,"hosts":["a","b"],"backend":"host",)"
             R"("command":["./train","--name","two words"],"variables":{"LOCKSTEP_LOG":"debug"},)"
             R"("event_files":["events.out.tfevents.1.a.2"]})");
  corpus.add("environment_markup", R"(e{"<a>":"<b>&\"","command":["<c>","\u0000&"],"ranks":[1]})");
  corpus.add("scalars", "s" + bytes_of(std::int64_t{7}) + bytes_of(1.5) + "\x04loss" +
                            bytes_of(0.25) + "\x02<\xff" + bytes_of(-1e300));
  std::string spans = "t\x01" + bytes_of(std::uint32_t{5}) + "\x04host";
  for (char kind = 0; kind < 5; ++kind)
    spans += bytes_of(std::uint32_t{10}) + bytes_of(std::uint32_t{20}) +
             bytes_of(std::uint32_t{1000}) + kind + "\x02\x01";
  corpus.add("trace", spans);
  // Waiting from 0 to 100, with work from 10 to 30, from 20 to 25 and from 90 to 120.
  const auto span = [](std::uint32_t begin, std::uint32_t length, TraceSpan::Kind kind) {
    return bytes_of(begin) + bytes_of(length) + bytes_of(std::uint32_t{0}) +
           static_cast<char>(kind) + "\0\0"s;
  };
  using Kind = TraceSpan::Kind;
  corpus.add("overlaps", "t\0"s + bytes_of(std::uint32_t{0}) + "\0"s + span(0, 100, Kind::waiting) +
                             span(10, 20, Kind::working) + span(20, 5, Kind::working) +
                             span(90, 30, Kind::working) + span(5, 100, Kind::waiting));
}

void write_all(const std::filesystem::path& root) {
  control_frames({root, "control_frame"});
  idx_arrays({root, "idx"});
  cifar10_files({root, "cifar10"});
  images({root, "image"});
  safetensors_files({root, "safetensors"});
  torch_files({root, "torch_file"});
  pickles({root, "unpickle"});
  run_records({root, "run_record"});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  lockstep::write_all(argv[1]);
}
