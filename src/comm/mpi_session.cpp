#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include <mpi.h>

#include "voltapile/comm/mpi.hpp"

#include "mpi_endpoint.hpp"

namespace voltapile {

namespace {
// The rank with the cause prints its message and ends the job, with its code, within this time.
constexpr std::chrono::seconds kPatience(5);
}  // namespace

struct MpiSession::Impl {
  std::shared_ptr<comm::MpiContext> context;
  int exceptions_at_birth = std::uncaught_exceptions();
};

MpiSession::MpiSession(int* argc, char*** argv) : impl_(std::make_unique<Impl>()) {
  int provided = MPI_THREAD_SINGLE;
  comm::check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw Error(
        ExitCode::failure,
        format("this MPI gives thread level {} and voltapile needs MPI_THREAD_MULTIPLE ({}): "
               "its lanes communicate at once; use an MPI built with thread support",
               provided, static_cast<int>(MPI_THREAD_MULTIPLE)));
  }
  impl_->context = std::make_shared<comm::MpiContext>();
}

MpiSession::~MpiSession() {
  // MPI_Finalize waits for every rank: after a failure it would wait for ever.
  if (std::uncaught_exceptions() > impl_->exceptions_at_birth || impl_->context->lost()) return;
  impl_->context->close();
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::world() {
  MPI_Comm world = MPI_COMM_NULL;
  comm::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  return comm::make_communicator(comm::MpiEndpoint::adopt(impl_->context, world));
}

int MpiSession::rank() const { return impl_->context->rank(); }
int MpiSession::size() const { return impl_->context->size(); }

void MpiSession::abort(int exit_code) {
  if (impl_->context->told_by_another()) std::this_thread::sleep_for(kPatience);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace voltapile
