#include <torch/types.h>

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/model_files.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using namespace safetensors;

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
  return bytes;
}

/// A file put together by hand.
std::string file_of(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

at::Tensor as_tensor(const std::string& bytes) {
  at::Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Content parsed(const std::string& bytes) { return parse(as_tensor(bytes), "x.safetensors"); }
std::string error_of(const std::string& header, const std::string& data = "") {
  return failure([&] { parsed(file_of(header, data)); });
}

Content sample() {
  Content content;
  content.metadata = {{"epoch", "3"}, {"text", "quote \" and ünïcode"}};
  const auto values = torch::tensor({-1.5, 0.0, 2.25, 100.0, -3.0, 7.0}, torch::kDouble);
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16,
                           torch::kLong, torch::kInt, torch::kShort, torch::kChar})
    content.tensors[std::string("of.") + c10::toString(dtype)] = values.to(dtype).reshape({2, 3});
  content.tensors["of.Byte"] = torch::tensor({0, 255, 7}, torch::kUInt8);
  content.tensors["of.Bool"] = torch::tensor({true, false, true, true, false});
  content.tensors["scalar"] = torch::tensor(1.25F);
  content.tensors["empty"] = torch::empty({0, 4});
  return content;
}

// TorchInterop.FilesGoToSafetensorsAndBack compares with the reference, which needs no alignment.
TEST(Safetensors, ComeBackAsTheyWereAndAreAligned) {
  const TemporaryFolder folder;
  Content written = sample();
  written.tensors["transposed"] = torch::arange(6).reshape({2, 3}).t();
  write(folder / "a.safetensors", written);
  const Content got = read(folder / "a.safetensors");
  EXPECT_TRUE(got.checked);
  EXPECT_EQ(got.metadata, written.metadata);
  EXPECT_EQ(got.tensors.size(), written.tensors.size());
  write(folder / "none", {});
  EXPECT_TRUE(read(folder / "none").tensors.empty());
  const std::string bytes = content(folder / "a.safetensors");
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  EXPECT_EQ(length % 8, 0u);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["text"], "quote \" and ünïcode");
  for (const auto& [name, tensor] : written.tensors) {
    EXPECT_EQ(header[name]["data_offsets"][0].get<std::size_t>() % tensor.element_size(), 0u)
        << name;
    EXPECT_EQ(got.tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(got.tensors.at(name).equal(tensor)) << name;
  }
}

TEST(Safetensors, EveryTruncationAndAnAbsurdLengthAreErrorsThatNameTheFile) {
  const TemporaryFolder folder;
  write(folder / "a.safetensors", sample());
  const std::string whole = content(folder / "a.safetensors");
  for (std::size_t size = 0; size < whole.size(); ++size)
    ASSERT_THAT(failure([&] { parsed(whole.substr(0, size)); }), HasSubstr("x.safetensors: "))
        << size;
  EXPECT_THAT(failure([&] { parsed(whole + "x"); }), HasSubstr("bytes of values, found"));
  EXPECT_THAT(failure([] { parsed(""); }), HasSubstr("expected at least 8 bytes, found 0"));
  EXPECT_THAT(failure([] { parsed(little_endian(~std::uint64_t{0}) + "{}"); }),
              HasSubstr("offset 0: expected a header of at most 2 bytes, found a length of "
                        "18446744073709551615: it is cut off, or not a safetensors file"));
  EXPECT_THAT(failure([] { parsed("note"); }), HasSubstr("found 4: it is cut off, or not a safe"));
  EXPECT_THAT(failure([] { parsed("PK\3\4 and the rest"); }),
              HasSubstr("x.safetensors: is a zip file, as torch::save() and Python's torch.save "
                        "write, expected a safetensors file: read it by torch::load() or "
                        "read_torch_file()"));
  EXPECT_THAT(failure([] { parsed(little_endian(3) + "{}"); }), HasSubstr("found a length of 3"));
  EXPECT_THAT(failure([&] { read(folder / "none"); }),
              AllOf(HasSubstr((folder / "none").string()), HasSubstr("No such file")));
  for (const auto& path : {folder.path(), std::filesystem::path("/dev/zero")})
    EXPECT_THAT(failure([&] { read(path); }), HasSubstr("is not a regular file"));
}

TEST(Safetensors, ABadHeaderIsAnError) {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  const std::pair<std::string, const char*> cases[] = {
      {"{", "header: "},
      {"{\"\xff\":1}", "header: "},
      {std::string(100000, '['), "header: "},
      {"[]", "expected an object, found array"},
      {R"({"__metadata__":[]})", "expected an object, found array"},
      {R"({"__metadata__":{"a":1}})", "'a': expected a string, found number"},
      {R"({"a":1})", "tensor 'a': found no"},
      {R"({"a":{"dtype":"F32","shape":[]}})", "tensor 'a': found no data_offsets"},
      {R"({"a":{"dtype":"F8","shape":[],"data_offsets":[0,0]}})",
       "tensor 'a': expected a dtype of F64 F32"},
      {R"({"a":{"dtype":"F8","shape":[],"data_offsets":[0,0]}})", "found \"F8\""},
      {"{\"a\":" + entry + ",\"a\":" + entry + "}", "'a' occurs twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", "'k' occurs twice"},
      // Depth that would fill the stack.
      {R"({"a":{"shape":)" + std::string(1'000'000, '['), "levels"}};
  for (const auto& [header, error] : cases)
    EXPECT_THAT(error_of(header, "x"), HasSubstr(error)) << header.substr(0, 100);
  for (const char* shape : {"[-1]", "[1.5]", "\"1\"", "[99999999999999999999]", "[null]"})
    EXPECT_THAT(
        error_of(std::string(R"({"a":{"dtype":"F32","data_offsets":[0,4],"shape":)") + shape + "}}",
                 "1234"),
        HasSubstr("tensor 'a': shape: expected an array of sizes"));
}

TEST(Safetensors, OffsetsMustFitAndTile) {
  const auto one = [](const std::string& offsets, const std::string& shape) {
    return R"({"a":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::tuple<const char*, const char*, const char*, const char*> wrong[] = {
      {"[0,5]", "[5]", "1234", "[begin, end] within 4 bytes, found [0,5]"},
      {"[4,0]", "[4]", "1234", "found [4,0]"},
      {"[0]", "[4]", "1234", "found [0]"},
      {"[0,4]", "[3]", "1234", "expected 3 bytes"},
      {"[1,5]", "[4]", "12345", "expected its values at 0, found 1"},
      {"[0,4]", "[4]", "12345", "expected 4 bytes of values, found 5"},
      {"[0,4]", "[4611686018427387904,4611686018427387904]", "1234", "a shape beyond any memory"},
      {"[0,0]", "[0,4611686018427387904,4611686018427387904]", "", "a shape beyond any memory"}};
  for (const auto& [offsets, shape, data, error] : wrong)
    EXPECT_THAT(error_of(one(offsets, shape), data), HasSubstr(error)) << offsets << shape;

  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(error_of(two("[2,4]", "[0,2]"), "1234"), "");
  EXPECT_THAT(error_of(two("[0,2]", "[1,3]"), "123"),
              HasSubstr("tensor 'b': expected its values at 2, found 1"));
  EXPECT_THAT(error_of(two("[0,2]", "[3,5]"), "12345"),
              HasSubstr("tensor 'b': expected its values at 2, found 3"));
}

TEST(Safetensors, WhatCannotBeStoredIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  const auto storing = [&](const std::string& name, const at::Tensor& tensor) {
    return failure([&] { write(path, {.tensors = {{name, tensor}}, .metadata = {}}); });
  };
  EXPECT_THAT(
      storing("c", torch::zeros({1}, torch::kComplexDouble)),
      AllOf(HasSubstr(path.string()), HasSubstr("tensor 'c': cannot store dtype ComplexDouble")));
  EXPECT_THAT(storing("u", at::Tensor()), HasSubstr("tensor 'u': cannot be stored: undefined"));
  EXPECT_THAT(storing("s", torch::eye(2).to_sparse()), HasSubstr("tensor 's': cannot be stored"));
  EXPECT_THAT(storing("m", torch::zeros({2}, torch::kMeta)),
              HasSubstr("tensor 'm': cannot be stored: of device meta"));
  EXPECT_THAT(storing("__metadata__", torch::zeros({1})), HasSubstr("its name is reserved"));
  EXPECT_THAT(storing("\xff", torch::zeros({1})), HasSubstr("not UTF-8"));
  EXPECT_THAT(failure([&] {
                write(path, {.tensors = {}, .metadata = {{"xxh3", "1"}}});
              }),
              HasSubstr("note 'xxh3': the name is reserved"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::testing
