#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <mpi.h>

#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/comm/mpi.hpp"

#include "mpi_endpoint.hpp"

namespace voltapile {

namespace {
// The rank with the cause prints its message and ends the job, with its code, within this time.
constexpr std::chrono::seconds kPatience(5);
// Starting and ending wait for all ranks, and no watch is there yet, or any more.
constexpr std::chrono::minutes kStartLimit(15), kEndLimit(2);
constexpr std::chrono::seconds kAbortLimit(10);

// Ends the process unless it is destroyed in time.
class Deadline {
 public:
  Deadline(const char* what, std::chrono::seconds limit)
      : thread_([this, what, limit] {
          std::unique_lock lock(mutex_);
          if (reached_.wait_for(lock, limit, [this] { return over_; })) return;
          log::error(
              format("error: {} on {} has not returned for {} s: a rank of this job is "
                     "stopped, or was never started",
                     what, host_name(), limit.count()));
          std::_Exit(static_cast<int>(ExitCode::failure));
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    reached_.notify_one();
    thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  bool over_ = false;
  std::thread thread_;  // the last: it uses the others
};
}  // namespace

struct MpiSession::Impl {
  std::shared_ptr<comm::MpiContext> context;
  int exceptions_at_birth = std::uncaught_exceptions();
};

MpiSession::MpiSession(int* argc, char*** argv) : impl_(std::make_unique<Impl>()) {
  const Deadline deadline("MPI_Init", kStartLimit);
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
  const Deadline deadline("MPI_Finalize", kEndLimit);
  impl_->context->close();
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::world() {
  MPI_Comm world = MPI_COMM_NULL;
  comm::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  return comm::make_communicator(comm::MpiEndpoint::adopt(impl_->context, world));
}

std::string MpiSession::library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  comm::check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  return {text.data(), static_cast<size_t>(length)};
}

int MpiSession::rank() const { return impl_->context->rank(); }
int MpiSession::size() const { return impl_->context->size(); }

void MpiSession::abort(int exit_code) {
  if (impl_->context->told_by_another()) std::this_thread::sleep_for(kPatience);
  // Its launcher may be gone, or stopped, and then nobody answers.
  const Deadline deadline("MPI_Abort", kAbortLimit);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace voltapile
