#include "formats/pickle.h"

#include <torch/types.h>
#include <zlib.h>

#include <map>

#include "lockstep/model_files.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using namespace detail;

using namespace std::string_literals;

SkippedValues skipped;  // by the last unpickled()

c10::IValue unpickled(const std::string& bytes) {
  skipped.clear();
  return unpickle(
      "\x80\x02"s + bytes + ".",
      [](const std::string&, at::ScalarType dtype, std::int64_t) {
        return torch::arange(6, dtype);
      },
      skipped);
}

std::string pickle_error(const std::string& bytes) {
  return failure([&] { unpickled(bytes); });
}

/// What is refused, with a part of the error.
void expect_errors(std::initializer_list<std::pair<std::string, const char*>> cases) {
  for (const auto& [bytes, error] : cases)
    EXPECT_THAT(pickle_error(bytes), HasSubstr(error)) << bytes.substr(0, 100);
}

std::string text(const std::string& letters) {
  return "X"s + static_cast<char>(letters.size()) + "\0\0\0"s + letters;
}

/// A tensor over the storage 0 … 5, whose three numbers are given as they stand in the pickle.
std::string tensor(const std::string& offset, const std::string& sizes,
                   const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" +
         text("0") + text("cpu") + "K\x06tQ" + offset + sizes + strides +
         "\211ccollections\nOrderedDict\n)RtR";
}

TEST(Unpickle, NumbersAndTextsAsWhichDevicesAndDtypesCount) {
  EXPECT_EQ(unpickled("K\xff").toInt(), 255);
  EXPECT_EQ(unpickled("M\xff\xff").toInt(), 65535);
  EXPECT_EQ(unpickled("J\xff\xff\xff\xff").toInt(), -1);
  EXPECT_EQ(unpickled("\x8a\x00"s).toInt(), 0);
  EXPECT_EQ(unpickled("\x8a\x01\x80"s).toInt(), -128);
  EXPECT_EQ(unpickled("\x8a\x02\x00\x80"s).toInt(), -32768);
  EXPECT_EQ(unpickled("G\xbf\xf8\0\0\0\0\0\0"s).toDouble(), -1.5);
  EXPECT_EQ(unpickled(text("abc")).toStringRef(), "abc");
  EXPECT_EQ(unpickled("(K\x01K\x02t").toTupleRef().elements().size(), 2u);
  EXPECT_EQ(unpickled("ctorch\ndevice\n" + text("cpu") + "\x85R").toStringRef(), "cpu");
  EXPECT_EQ(unpickled("ctorch\ndevice\n" + text("cuda") + "K\x01\x86R").toStringRef(), "cuda:1");
  EXPECT_EQ(unpickled("ctorch\nfloat32\n").toStringRef(), "torch.float32");
  EXPECT_THAT(pickle_error("ctorch\ndevice\nK\x01\x85R"), HasSubstr("other arguments of"));
  EXPECT_EQ(unpickled("ccollections\nCounter\n)R").toGenericDict().size(), 0u);
}

TEST(Unpickle, ViewsStayWithinTheirStorage) {
  const at::Tensor view = unpickled(tensor("K\x01", "K\x02K\x02\x86", "K\x03K\x01\x86")).toTensor();
  EXPECT_TRUE(view.equal(torch::tensor({{1.F, 2.F}, {4.F, 5.F}})));
  const char* const expected = "expected a tensor within its storage of 6 elements";
  const std::string huge = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;
  expect_errors({{tensor("K\x02", "K\x02K\x02\x86", "K\x03K\x01\x86"), expected},
                 {tensor("J\xff\xff\xff\xff", "K\x01\x85", "K\x01\x85"), expected},
                 {tensor("K\0"s, huge + "\x85", "K\x01\x85"), expected},
                 {tensor("K\0"s, "K\x03\x85", huge + "\x85"), expected},
                 {tensor("K\0"s, huge + huge + "\x86", "K\0K\0\x86"s), expected},
                 {tensor("K\0"s, "K\x03\x85", ")"), expected},
                 {tensor("K\0"s, "J\xff\xff\xff\xff\x85", "K\x01\x85"), "expected sizes"}});
}

TEST(Unpickle, NothingElseIsNamedOrCalled) {
  expect_errors({{"cos\nsystem\n" + text("true") + "\x85R", "found the global 'os.system'"},
                 {"cbuiltins\neval\n", "found the global 'builtins.eval'"},
                 {"ctorch\nload\n", "found the global 'torch.load'"},
                 {"K\x01)R", "expected a call"},
                 {"ctorch\nFloatStorage\n)R", "other arguments of"},
                 {"ccollections\nOrderedDict\nK\x01\x85R", "other arguments of"},
                 {"ctorch._utils\n_rebuild_tensor_v2\n)R", "other arguments of"},
                 {"ctorch\nFloatStorage\n", "found the global 'torch.FloatStor"},
                 {"]ctorch\nSize\na", "found the global 'torch.Size'"},
                 {"]ctorch\nSize\n\205a", "found the global 'torch.Size'"},
                 {"ctorch\nSize\n\x85\x85", "found the global 'torch.Size'"},
                 {"K\x01}b", "expected the state of a dict"},
                 {"K\x01)\x81", "expected the class of an object, found Int"},
                 {"c__main__\nNet\n)\x81}b", "the global '__main__.Net'"}});
  for (const char* opcode : {"i", "o", "\x92", "\x82", "P", "\x93", "B", "S'x'\n"})
    expect_errors({{opcode, "which state dicts do not use"}});
}

TEST(Unpickle, OtherObjectsAreLeftOutByName) {
  const auto kept = [](const std::string& bytes) {
    return unpickled("}(" + text("a") + bytes + text("b") + "K\x05u").toGenericDict();
  };
  const std::string object = "c__main__\nAnneal\n)\x81}" + text("x") + "K\x01sb";
  const auto skips = [&](const std::string& bytes, const std::string& name,
                         const std::string& what) {
    const auto dict = kept(bytes);
    EXPECT_EQ(dict.at("b").toInt(), 5);
    EXPECT_THAT(skipped, ElementsAre(Pair(name, HasSubstr(what)))) << bytes;
    return dict;
  };
  const std::string quantised = "ctorch._utils\n_rebuild_qtensor\n((" + text("storage") +
                                "ctorch\nQInt8Storage\n" + text("0") + text("cpu") + "K\x06tQtR";
  const std::pair<std::string, const char*> cases[] = {
      {object, "the global '__main__.Anneal'"},
      {"K\x01" + object + "\x86", "__main__.Anneal"},
      {"](K\x01" + object + "e", "__main__.Anneal"},
      {"ccollections\ndeque\n)R(K\1K\2e", "deque"},
      {"}K\x01\x85K\x01s", "a key that is Tuple"},
      {"\x8a\t123456789", "an integer of 9 bytes"},
      {"ctorch\nSize\n", "the global 'torch.Size'"},
      {"ctorch._utils\n_rebuild_parameter\n" + object + "\x89}\x87R", "Anneal"},
      {quantised, "_rebuild_qtensor"}};
  for (const auto& [bytes, what] : cases) EXPECT_FALSE(skips(bytes, "a", what).contains("a"));
  // Of a dict in a list only that entry.
  const auto list = skips("]}(" + text("f") + object + text("g") + "K\x07ua", "a.0.f", "Anneal");
  EXPECT_EQ(list.at("a").toListRef()[0].toGenericDict().size(), 1u);
  // One list in many places.
  const auto shared = kept("](" + object + "eq\x01" + text("c") + "h\x01");
  EXPECT_THAT(skipped, ElementsAre(Pair("a", HasSubstr("Anneal")), Pair("c", HasSubstr("Anneal"))));
  EXPECT_EQ(shared.size(), 1u);
}

TEST(Unpickle, WhatIsBrokenIsAnError) {
  EXPECT_THAT(failure([] { unpickle("", {}, skipped); }),
              HasSubstr("expected 1 more bytes, found 0"));
  EXPECT_THAT(failure([] { unpickle("\x80\x04.", {}, skipped); }), HasSubstr("found 4"));
  expect_errors({{"X\xff\xff\xff\xff", "expected 4294967295 more bytes"},
                 {"\x8a\t123456789", "an integer of 9 bytes"},
                 {"cno end", "expected a line"},
                 {"", "expected a value, found none"},
                 {"h\x05", "expected memo 5 to be defined before"},
                 {"}K\x01\x85K\x01s", "found a key that is Tuple"},
                 {"}(K\x01u", "an odd number"},
                 {"K\1K\2a", "expected a list or dict to add to"}});
  for (const char* bytes : {"a", "s", "u", "e", "t", "R", "b", "Q", "q\x01", "\x85", "K\x01\x86",
                            "(K\x01u", "K\x01(\x85", "K\x01(R"})
    expect_errors({{bytes, "of data.pkl: "}});
}

TEST(Unpickle, NothingHoldsItselfOrFillsTheStack) {
  std::string deep(100'000, ']');
  const char* const expected = "already part of another value";
  expect_errors({{"]q\1h\1a", expected},
                 {"]q\1]q\2h\1ah\1h\2a", expected},
                 {"}q\1K\1h\1\x85s", expected},
                 {deep + std::string(deep.size(), 'a'), "64 levels of nesting"},
                 {"K\1" + std::string(100'000, '\x85'), "64 levels"}});
  // The same list twice in another is no harm.
  EXPECT_EQ(unpickled("]]q\1ah\1a").toListRef().size(), 2u);
  EXPECT_EQ(unpickled(deep).toListRef().size(), 0u);
}

TEST(Pickle, WhatHasNoFormIsAnError) {
  std::vector<at::Tensor> storages;
  const auto storing = [&](const c10::IValue& value) {
    return failure([&] { pickle(value, storages); });
  };
  EXPECT_THAT(storing(at::Tensor()), HasSubstr("undefined"));
  EXPECT_THAT(storing(torch::empty({1}, c10::ScalarType::Bits8)),
              HasSubstr("cannot store dtype Bits8"));
  EXPECT_THAT(storing(c10::Device("cpu")), HasSubstr("cannot store Device"));
  c10::IValue deep = 1;
  for (int i = 0; i < 70; ++i) deep = c10::ivalue::Tuple::create(deep);
  EXPECT_THAT(storing(deep), HasSubstr("64 levels"));
}

TEST(TorchFile, DamageAndAPlaceThatCannotTakeItAreErrorsThatNameTheFile) {
  EXPECT_THAT(failure([] { write_torch_file("/dev/full", 1); }),
              HasSubstr("/dev/full: exists and is not a regular file"));
  EXPECT_THAT(failure([] { write_torch_file("no/such/folder/x", 1); }), HasSubstr("No such file"));
  const TemporaryFolder folder;
  const auto path = folder / "file.pt";
  write_torch_file(path, torch::ones({4}));
  const std::string whole = content(path);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{30}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    EXPECT_THAT(failure([&] { read_torch_file(path); }), HasSubstr(path.string() + ": ")) << size;
  }
  // No bit of it may end the program; what it says is LibTorch's or the unpickler's.
  for (std::size_t byte = 0; byte < whole.size(); byte += 5) {
    std::string changed = whole;
    changed[byte] = static_cast<char>(changed[byte] ^ (1 << byte % 8));
    std::ofstream(path, std::ios::binary) << changed;
    failure([&] { read_torch_file(path); });
  }
}

/// A zip file without compression that stores equal contents once, whatever they are called.
std::string zip_file(const std::vector<std::pair<std::string, std::string>>& records) {
  const auto number = [](std::size_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i & 0xff);
    return text;
  };
  const auto described = [&](const std::string& name, const std::string& content) {
    const auto sum =
        crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
    return number(20, 2) + std::string(8, '\0') + number(sum, 4) + number(content.size(), 4) +
           number(content.size(), 4) + number(name.size(), 2) + number(0, 2);
  };
  std::string files, directory;
  std::map<std::string, std::size_t> places;
  for (const auto& [name, content] : records) {
    const auto [place, is_new] = places.emplace(content, files.size());
    if (is_new) files += "PK\3\4" + described(name, content) + name + content;
    directory += "PK\1\2" + number(20, 2) + described(name, content) + std::string(10, '\0') +
                 number(place->second, 4) + name;
  }
  return files + directory + "PK\5\6" + number(0, 4) + number(records.size(), 2) +
         number(records.size(), 2) + number(directory.size(), 4) + number(files.size(), 4) +
         number(0, 2);
}

TEST(TorchFile, StoragesThatShareBytesAndRecordsLargerThanTheFileAreRefused) {
  const TemporaryFolder folder;
  const auto write = [&](int count, const std::string& content) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (int i = 0; i < count; ++i)
      list.push_back(torch::zeros({static_cast<std::int64_t>(content.size())}, torch::kChar));
    std::vector<at::Tensor> storages;
    std::vector<std::pair<std::string, std::string>> records{
        {"a/version", "3\n"}, {"a/data.pkl", pickle(list, storages)}};
    for (int i = 0; i < count; ++i) records.emplace_back("a/data/" + std::to_string(i), content);
    folder.write("file.pt", zip_file(records));
    return folder / "file.pt";
  };
  const std::string content(10000, 'x');
  EXPECT_EQ(read_torch_file(write(1, content)).toListRef().size(), 1u);
  // 100 times its size would be taken.
  const auto file = write(100, content);
  EXPECT_THAT(failure([&] { read_torch_file(file); }),
              AllOf(HasSubstr(file.string() + ": storage '"), HasSubstr("bytes for all storages")));
  // A record that is larger than the file.
  std::vector<at::Tensor> storages;
  std::string bytes = zip_file({{"a/version", "3\n"}, {"a/data.pkl", pickle(1, storages)}});
  const std::size_t version = bytes.find("PK\1\2");
  bytes[version + 10] = 8;       // compressed
  bytes[version + 27] = '\x40';  // 1 GiB
  folder.write("file.pt", bytes);
  EXPECT_THAT(failure([&] { read_torch_file(file); }),
              HasSubstr("file.pt: a/version: expected at most " + std::to_string(bytes.size()) +
                        " bytes, found 1073741826"));
}

}  // namespace
}  // namespace lockstep::testing
