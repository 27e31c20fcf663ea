#include "ranks.hpp"

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "voltapile/comm/mpi.hpp"

namespace voltapile::testing {
namespace {

MpiSession* session = nullptr;  // alive while main() runs the tests of an mpirun job
Communicator* processes = nullptr;

bool started_by_mpirun() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

// Of the other processes only failures are of interest.
class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "process %d: %s:%d: %s\n", session->rank(),
                 result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                 result.message());
  }
};

}  // namespace

bool under_mpirun() { return session != nullptr; }

int most_ranks(int threads) { return session != nullptr ? session->size() : threads; }

void on_ranks(int n, const std::function<void(std::unique_ptr<Communicator>)>& body) {
  if (session == nullptr) return spawn_ranks(n, body);
  VP_CHECK(n <= session->size(), "{} ranks in a job of {}", n, session->size());
  try {
    auto part = processes->split(session->rank() < n ? 0 : -1, 0);
    if (part != nullptr) body(std::move(part));
    processes->barrier();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %d: %s\n", session->rank(), error.what());
    session->abort(1);
  }
}

int run_under_mpirun(int argc, char** argv) {
  MpiSession mpi(&argc, &argv);
  session = &mpi;
  const auto world = mpi.world();
  processes = world.get();
  if (mpi.rank() > 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    // All processes are given the same file name for the report.
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new FailuresOnly);
  }
  const int rc = RUN_ALL_TESTS();
  session = nullptr;
  return rc;
}

}  // namespace voltapile::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (voltapile::testing::started_by_mpirun())
    return voltapile::testing::run_under_mpirun(argc, argv);
  return RUN_ALL_TESTS();
}
