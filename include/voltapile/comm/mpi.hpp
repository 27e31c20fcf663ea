// The MPI backend. Nothing here names an MPI type; mpi.h is included in src/comm/mpi_* only.
#pragma once
#include <memory>
#include <string>

#include "voltapile/comm/communicator.hpp"

namespace voltapile {

// MPI_Init_thread(MPI_THREAD_MULTIPLE) for the lifetime of the object. Without mpirun the world has
// one rank. A process ends with exit code 5 when MPI_Init or MPI_Finalize waits too long for other
// ranks: 15 and 2 minutes.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  std::unique_ptr<Communicator> world();
  // "Open MPI v4.1.4, ...": the library that was found when the program started.
  static std::string library();
  int rank() const;
  int size() const;
  // Ends every rank of the job with this exit code, at once; but a rank that only echoes another's
  // failure (PeerFailure) first leaves that one 5 s to do so, so that its words and code are the
  // last.
  [[noreturn]] void abort(int exit_code);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
