// Files go from PyTorch to Lockstep and back; torch_interop.py is the other side.
#include <map>

#include "lockstep/model_files.h"
#include "tests/python.h"
#include "tests/train/training.h"

namespace lockstep::testing {
namespace {

using Dict = c10::impl::GenericDict;

constexpr const char* script = "tests/train/torch_interop.py";

/// The files that torch_interop.py writes, once for all tests.
class TorchInterop : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TemporaryFolder>();
    written = python(script, {"write", folder->path().string()});
  }
  static void TearDownTestSuite() { folder.reset(); }
  void SetUp() override {
    if (written.is_missing()) GTEST_SKIP() << "no Python with torch: " << written.text;
    ASSERT_EQ(written.code, 0) << written.text;
  }

  static c10::IValue read(const std::string& name) { return read_torch_file(*folder / name); }
  static std::string error(const std::string& name) {
    return failure([&] { read(name); });
  }
  static std::vector<std::pair<at::Tensor, at::Tensor>> batches() {
    std::vector<std::pair<at::Tensor, at::Tensor>> result;
    const c10::IValue file = read("batches.pt");
    for (const c10::IValue& batch : file.toListRef()) {
      const auto& parts = batch.toTupleRef().elements();
      result.emplace_back(parts[0].toTensor(), parts[1].toTensor());
    }
    return result;
  }
  /// A training in float64; counters stay what they are.
  static Training in_double(const OptimizerKind& kind) {
    Training training(kind);
    const auto convert = [](at::Tensor tensor) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(at::kDouble));
    };
    for (const at::Tensor& tensor : training.model->parameters()) convert(tensor);
    for (const at::Tensor& tensor : training.model->buffers()) convert(tensor);
    return training;
  }
  static void train(Training& training, std::size_t begin, std::size_t end) {
    const auto all = batches();
    for (std::size_t i = begin; i < end; ++i) {
      training.optimizer->step([&] {
        training.optimizer->zero_grad();
        Net& net = *training.model;
        const at::Tensor hidden = torch::tanh(net.first(all[i].first));
        const at::Tensor outputs = net.second(hidden + net.norm(hidden));
        at::Tensor loss = torch::nn::functional::cross_entropy(outputs, all[i].second);
        loss.backward();
        return loss;
      });
    }
  }

  static inline std::unique_ptr<TemporaryFolder> folder;
  static inline Answer written;
};

TEST_F(TorchInterop, AStateDictHasItsNamesAndValues) {
  const Dict nested = read("nested.pt").toGenericDict();
  EXPECT_EQ(nested.at("epoch").toInt(), 3);
  EXPECT_EQ(nested.at("best").toDouble(), 0.5);
  EXPECT_EQ(nested.at("name").toStringRef(), "résnet");
  EXPECT_TRUE(nested.at("ok").toBool());
  EXPECT_TRUE(nested.at("none").isNone());
  const c10::IValue list = nested.at("sizes");
  const auto sizes = list.toListRef();
  EXPECT_EQ(sizes[0].toTupleRef().elements()[1].toInt(), 3);
  EXPECT_EQ(sizes[1].toTupleRef().elements()[1].toInt(), -(std::int64_t{1} << 40));
  const Dict model = nested.at("model").toGenericDict();
  const Dict sums = nested.at("sums").toGenericDict();
  EXPECT_EQ(model.begin()->key().toStringRef(), "layer.0.unused");
  EXPECT_EQ(model.at("layer.0.first.weight").toTensor().sizes(), at::IntArrayRef({6, 4}));
  const at::Tensor counter = model.at("layer.0.norm.num_batches_tracked").toTensor();
  EXPECT_EQ(counter.scalar_type(), at::kLong);
  EXPECT_EQ(counter.dim(), 0);
  for (const auto& item : model) {
    const double expected = sums.at(item.key()).toDouble();
    EXPECT_NEAR(item.value().toTensor().to(at::kDouble).sum().item<double>(), expected,
                1e-9 * std::max(1.0, std::abs(expected)))
        << item.key().toStringRef();
  }
}

TEST_F(TorchInterop, TiedTensorsStayTied) {
  const Dict file = read("tied.pt").toGenericDict();
  const at::Tensor a = file.at("a").toTensor();
  EXPECT_EQ(a.data_ptr(), file.at("b").toTensor().data_ptr());
  EXPECT_EQ(a[1].data_ptr(), file.at("part").toTensor().data_ptr());
  EXPECT_TRUE(file.at("t").toTensor().equal(a.t()));
  EXPECT_TRUE(file.at("parameter").toTensor().equal(a));
  EXPECT_EQ(file.at("scalar").toTensor().item<double>(), 2.5);
  EXPECT_EQ(file.at("empty").toTensor().sizes(), (std::vector<std::int64_t>{0, 4}));
}

/// As torch_interop.py has them in every dtype.
at::Tensor numbers(at::ScalarType dtype) { return torch::tensor({0, 1, 3}).to(dtype); }
std::string python_name(at::ScalarType dtype) { return std::string(getDtypeNames(dtype).first); }

/// Compares the bytes: LibTorch compares no float8.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.contiguous().view(at::kByte).equal(b.contiguous().view(at::kByte));
}

TEST_F(TorchInterop, EveryDtypeIsRead) {
  for (const auto dtype :
       {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
        at::kByte, at::kBool, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat,
        at::kComplexDouble, at::kComplexHalf, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    EXPECT_TRUE(same_bytes(read(python_name(dtype) + ".pt").toTensor(), numbers(dtype))) << dtype;
  }
}

TEST_F(TorchInterop, LazyConjugatesAndNegativesAreResolved) {
  const Dict file = read("conjugate.pt").toGenericDict();
  const at::Tensor plain = file.at("plain").toTensor();
  EXPECT_TRUE(file.at("conjugate").toTensor().resolve_conj().equal(at::conj_physical(plain)));
  const Dict negative = read("negative.pt").toGenericDict();
  EXPECT_TRUE(negative.at("negative").toTensor().equal(-negative.at("plain").toTensor()));
  EXPECT_THAT(error("sparse.pt"),
              HasSubstr("found the global 'torch._utils._rebuild_sparse_tensor'"));
  const at::Tensor expanded = read("expanded.pt").toTensor();
  EXPECT_EQ(expanded.sizes(), (std::vector<std::int64_t>{1 << 29}));
  EXPECT_LE(expanded.storage().nbytes(), 8u);
}

TEST_F(TorchInterop, WhatCannotBeHeldIsSkippedByName) {
  std::map<std::string, std::string> left_out;
  const Dict file = read_torch_file(*folder / "others.pt", &left_out).toGenericDict();
  std::vector<std::string> names;
  for (const auto& [name, what] : left_out) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("big", "bytes", "chain", "groups.0.made_by", "quantised", "queue",
                                 "set", "sparse.eye"));
  EXPECT_EQ(left_out.at("sparse.eye"), "the global 'torch._utils._rebuild_sparse_tensor'");
  torch::nn::Linear linear(2, 2);
  load_state_dict(*linear, file.at("model"));
  const Dict milestones = file.at("steps").toGenericDict().at("milestones").toGenericDict();
  EXPECT_EQ(milestones.at(5).toInt(), 2);
  EXPECT_EQ(file.at("states").toGenericDict().at("a").toListRef().size(), 1u);
  EXPECT_EQ(file.at("device").toStringRef(), "cuda:1");
  EXPECT_EQ(file.at("dtype").toStringRef(), "torch.bfloat16");
  EXPECT_TRUE(file.at("sparse").toGenericDict().at("ones").toTensor().equal(torch::ones({2})));
  EXPECT_EQ(file.at("groups").toListRef()[0].toGenericDict().at("lr").toDouble(), 0.5);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(read("others.pt").toGenericDict().size(), file.size());
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr((*folder / "others.pt").string() + ": skipped what is not supported: "),
            HasSubstr("'sparse.eye' (the global '")));
}

TEST_F(TorchInterop, WhatIsNoStateDictIsNamed) {
  EXPECT_THAT(error("whole.pt"), AllOf(HasSubstr((*folder / "whole.pt").string()),
                                       HasSubstr("found the global '__main__.Net'")));
  EXPECT_EQ(read("function.pt").toGenericDict().size(), 0u);
  EXPECT_THAT(error("legacy.pt"), HasSubstr("is not a zip file of torch.save"));
  EXPECT_THAT(error("protocol4.pt"), HasSubstr("expected pickle protocol 2, found 4"));
  EXPECT_THAT(error("script.pt"), HasSubstr("TorchScript"));
  EXPECT_THAT(error("none.pt"), HasSubstr("cannot open: No such file"));
  EXPECT_THAT(failure([] { read_torch_file(folder->path()); }), HasSubstr("is not a regular file"));
}

TEST_F(TorchInterop, CppGoesOnWherePythonStopped) {
  for (const auto& kind : kinds) {
    Training training = in_double(kind);
    for (auto& group : training.optimizer->param_groups()) group.options().set_lr(123);
    const Dict begun = read(std::string(kind.name) + ".begun.pt").toGenericDict();
    load_state_dict(*training.model, begun.at("model"));
    load_state_dict(*training.optimizer, begun.at("optimizer"));
    train(training, 3, 8);
    const Dict done = read(std::string(kind.name) + ".done.pt").toGenericDict();
    const Dict found = state_dict(*training.model).toGenericDict();
    ASSERT_EQ(found.size(), done.size());
    for (const auto& item : done) {
      const at::Tensor expected = item.value().toTensor().to(at::kDouble);
      const at::Tensor difference = found.at(item.key()).toTensor().to(at::kDouble) - expected;
      EXPECT_LE(difference.norm().item<double>(),
                1e-6 * std::max(1.0, expected.norm().item<double>()))
          << kind.name << ' ' << item.key().toStringRef();
    }
  }
}

TEST_F(TorchInterop, PythonGoesOnWhereCppStopped) {
  for (const auto& kind : kinds) {
    Training training = in_double(kind);
    train(training, 0, 3);
    Dict begun(c10::AnyType::get(), c10::AnyType::get());
    begun.insert("model", state_dict(*training.model));
    begun.insert("optimizer", state_dict(*training.optimizer));
    write_torch_file(*folder / (std::string(kind.name) + ".cpp_begun.pt"), begun);
    train(training, 3, 8);
    write_torch_file(*folder / (std::string(kind.name) + ".cpp_done.pt"),
                     state_dict(*training.model));
  }
  c10::impl::GenericList list(c10::AnyType::get());
  for (const c10::IValue& one : {c10::IValue(1), c10::IValue(2.5), c10::IValue(true),
                                 c10::IValue(c10::ivalue::Tuple::create(false, "x"))})
    list.push_back(one);
  const at::Tensor tied = torch::randn({2, 2});
  const at::Tensor complex = torch::randn({2, 2}, at::kComplexFloat);
  Dict values(c10::AnyType::get(), c10::AnyType::get());
  const std::pair<const char*, c10::IValue> all[] = {{"text", "über"},
                                                     {"big", -(std::int64_t{1} << 40)},
                                                     {"none", {}},
                                                     {"list", list},
                                                     {"a", tied},
                                                     {"b", tied},
                                                     {"t", torch::arange(6).reshape({2, 3}).t()},
                                                     {"scalar", torch::tensor(1.5F)},
                                                     {"empty", torch::empty({0, 4})},
                                                     {"complex", complex},
                                                     {"conjugate", complex.conj()}};
  for (const auto& [name, value] : all) values.insert(name, value);
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16, at::kUInt32,
                           at::kUInt64, at::kComplexDouble, at::kComplexHalf})
    values.insert("of " + python_name(dtype), numbers(dtype));
  write_torch_file(*folder / "values.pt", values);
  const Dict back = read("values.pt").toGenericDict();
  EXPECT_EQ(back.at("a").toTensor().data_ptr(), back.at("b").toTensor().data_ptr());
  EXPECT_EQ(back.at("big").toInt(), -(std::int64_t{1} << 40));
  const Answer answer = python(script, {"continue", folder->path().string()});
  EXPECT_EQ(answer.code, 0) << answer.text;
}

TEST(OptimizerDict, OfAdamIsNotThatOfAdamW) {
  const std::vector<at::Tensor> parameters{torch::ones({2}, torch::requires_grad())};
  torch::optim::Adam adam(parameters);
  torch::optim::AdamW adamw(parameters);
  EXPECT_THAT(failure([&] { load_state_dict(adamw, state_dict(adam)); }),
              HasSubstr("group 0: expected AdamW, found Adam"));
  EXPECT_THAT(failure([&] { load_state_dict(adam, state_dict(adamw)); }),
              HasSubstr("group 0: expected Adam, found AdamW"));
}

struct TiedNet : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
  torch::nn::Linear again = register_module("again", first);
  at::Tensor tied = register_parameter("tied", torch::randn({2}));
  at::Tensor same = register_parameter("same", tied);
};

TEST_F(TorchInterop, FilesGoToSafetensorsAndBack) {
  Training training;
  training.step(0);
  Checkpoint{.model = *training.model,
             .optimizer = *training.optimizer,
             .generator = at::detail::getDefaultCPUGenerator()}
      .save(*folder / "checkpoint.safetensors", {.epoch = 3, .notes = {{"seed", "7"}}});
  write_torch_file(*folder / "expected.pt", state_dict(*training.model));
  const auto dtypes = {at::kDouble,       at::kHalf,          at::kBFloat16,   at::kLong,
                       at::kInt,          at::kShort,         at::kChar,       at::kByte,
                       at::kBool,         at::kUInt16,        at::kUInt32,     at::kUInt64,
                       at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  safetensors::Content dtypes_of_cpp;
  for (const auto dtype : dtypes) dtypes_of_cpp.tensors[python_name(dtype)] = numbers(dtype);
  dtypes_of_cpp.tensors["empty"] = at::zeros({0, 4});
  safetensors::write(*folder / "dtypes.safetensors", dtypes_of_cpp);
  write_torch_file(*folder / "draw.pt", torch::randn({5}));
  const TiedNet tied, loaded;
  Checkpoint{.model = tied}.save(*folder / "tied.safetensors");
  write_torch_file(*folder / "tied_state.pt", state_dict(tied));
  const Answer answer = python(script, {"safetensors", folder->path().string()});
  if (answer.is_missing()) GTEST_SKIP() << answer.text;
  ASSERT_EQ(answer.code, 0) << answer.text;

  const auto content = safetensors::read(*folder / "python.safetensors");
  EXPECT_FALSE(content.checked);
  EXPECT_EQ(content.metadata.at("who"), "python");
  EXPECT_TRUE(content.tensors.at("x").equal(torch::arange(6).reshape({2, 3}).to(at::kFloat)));
  EXPECT_TRUE(content.tensors.at("h").equal(torch::ones({3}, torch::kBFloat16)));
  for (const auto dtype : dtypes)
    EXPECT_TRUE(same_bytes(content.tensors.at(python_name(dtype)), numbers(dtype))) << dtype;
  const auto of_tied = safetensors::read(*folder / "python_tied.safetensors");
  EXPECT_EQ(of_tied.tensors.size(), 3U);
  load_state_dict(loaded, of_tied.tensors);
  EXPECT_TRUE(loaded.again->weight.equal(tied.first->weight * 2));
  EXPECT_TRUE(loaded.same.equal(tied.tied * 2));
}

}  // namespace
}  // namespace lockstep::testing
