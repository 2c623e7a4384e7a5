// The benchmarks that need LibTorch, as one program: `bench_torch NAME …`, or by the link
// bench_NAME. One program compiles in a third of the time that nine take.
#include <iostream>
#include <string_view>

// Each is in a file of its own and parses its own command line.
namespace lockstep::bench {
namespace checkpoint {
int program(int argc, char** argv);
}
namespace denormals {
int program(int argc, char** argv);
}
namespace exchange {
int program(int argc, char** argv);
}
namespace memory {
int program(int argc, char** argv);
}
namespace overlap {
int program(int argc, char** argv);
}
namespace start {
int program(int argc, char** argv);
}
namespace strategy_digests {
int program(int argc, char** argv);
}
namespace victim {
int program(int argc, char** argv);
}
}  // namespace lockstep::bench

namespace {

using namespace lockstep::bench;

struct Program {
  std::string_view name;
  int (*run)(int argc, char** argv);
};

constexpr Program programs[] = {
    {"checkpoint", checkpoint::program},
    {"denormals", denormals::program},
    {"exchange", exchange::program},
    {"memory", memory::program},
    {"overlap", overlap::program},
    {"start", start::program},
    {"strategy_digests", strategy_digests::program},
    {"victim", victim::program},
};

/// By its name, with or without "bench_"; null for any other.
const Program* named(std::string_view name) {
  constexpr std::string_view prefix = "bench_";
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  for (const auto& program : programs) {
    if (program.name == name) return &program;
  }
  return nullptr;
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

int main(int argc, char** argv) {
  if (const auto* const program = named(file_name(argv[0]))) return program->run(argc, argv);
  if (argc > 1) {
    if (const auto* const program = named(argv[1])) return program->run(argc - 1, argv + 1);
  }
  std::cerr << "bench_torch: got " << (argc > 1 ? argv[1] : "no name") << ", expected one of:";
  for (const auto& program : programs) std::cerr << ' ' << program.name;
  std::cerr << '\n';
  return 2;
}
