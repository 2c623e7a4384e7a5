#include <ATen/ops/full.h>
#include <lockstep/lockstep.h>

#include <iostream>

int main() {
  auto world = lockstep::init();
  auto tensor = at::full({3}, world.rank() + 1.0F);
  world.all_reduce(tensor).wait();

  const float expected = 0.5F * static_cast<float>(world.size() * (world.size() + 1));
  if (!tensor.eq(expected).all().item<bool>()) {
    std::cerr << "rank " << world.rank() << ": got " << tensor << ", expected " << expected << '\n';
    return 1;
  }
  if (world.rank() == 0) std::cout << world.size() << " ranks agree on " << expected << '\n';
}
