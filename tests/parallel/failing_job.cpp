// One process of a job that fails in the way its argument says, written as a main() should be. Its
// driver, failing_job.py, looks at how the job ends.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "voltapile/comm/mpi.hpp"

#include "lane.hpp"

namespace voltapile {
namespace {

// The echoes leave files here, so that the cause need not guess when they have been heard.
std::filesystem::path folder;

void await_echoes(int count) {
  const auto heard = [] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  while (heard() < count) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void work(MpiSession& mpi, const char* what) {
  std::vector<float> memory(100000, 1.0f);
  const TensorView big{memory.data(), DType::f32, {100000}};
  testing::TestLane lane;
  auto world = mpi.world();
  auto part = world->split(0, world->rank());
  part->name = "dp(pp0 tp0)";
  for (int i = 0; i < 20; ++i) part->all_reduce(big, Reduction::max, lane);
  lane.wait();
  if (std::strcmp(what, "size") == 0) {
    part->all_reduce(big.slice_flat(0, mpi.rank() == 1 ? 10 : 20), Reduction::max, lane);
  } else if (mpi.rank() != 1) {
    part->all_reduce(big, Reduction::max, lane);
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others wait by now
    if (std::strcmp(what, "kill") == 0) std::raise(SIGKILL);
    if (std::strcmp(what, "abort") == 0) {
      world->abort("rank 1 gives up");
      await_echoes(mpi.size() - 1);
    }
    part->all_reduce(big.slice_flat(0, 10), Reduction::max, lane);  // not what the others do
    if (std::strcmp(what, "throw") == 0) throw Error(ExitCode::bad_data, "rank 1 read nonsense");
  }
  lane.wait();
}

}  // namespace
}  // namespace voltapile

int main(int argc, char** argv) {
  using namespace voltapile;
  MpiSession mpi(&argc, &argv);
  folder = argv[2];
  try {
    work(mpi, argv[1]);
  } catch (const PeerFailure& echo) {
    std::fprintf(stderr, "echo on %d: %s\n", mpi.rank(), echo.what());
    std::ofstream(folder / std::to_string(mpi.rank()));
    mpi.abort(static_cast<int>(echo.code()));
  } catch (const Error& error) {
    std::fprintf(stderr, "cause on %d: %s\n", mpi.rank(), error.what());
    mpi.abort(static_cast<int>(error.code()));
  }
}
