// What all MPI communicators of a process share: waiting that leaves the core to others, and news
// of failure.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <span>
#include <string>

#include <mpi.h>

#include "endpoint.hpp"

namespace voltapile::comm {

// Throws Error(failure) with MPI's own words when `code` is not MPI_SUCCESS.
void check_mpi(int code, const char* what);

class MpiContext {
 public:
  MpiContext();  // MPI is initialized; collective over MPI_COMM_WORLD
  MpiContext(const MpiContext&) = delete;
  MpiContext& operator=(const MpiContext&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Until all requests are done; PeerFailure when a rank failed meanwhile.
  void wait(std::span<MPI_Request> requests, std::span<MPI_Status> statuses, const Endpoint& end);
  void abort(const std::string& why);  // the first cause stays; tells every rank
  void throw_if_lost(const Endpoint& end);
  bool lost() const { return lost_.load(); }
  bool told_by_another() const { return told_.load(); }

  bool usable() const { return !lost_.load() && !closed_.load(); }  // MPI calls make sense
  void close();                                                     // before MPI_Finalize

 private:
  static constexpr size_t kNewsBytes = 2048;  // below every transport's eager limit
  void listen();
  std::string why() const;

  int rank_ = 0, size_ = 1;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::atomic<bool> lost_{false}, told_{false}, closed_{false};
  std::mutex listening_;  // guards the pending receive
  std::array<char, kNewsBytes> news_{};
  MPI_Request pending_ = MPI_REQUEST_NULL;
  mutable std::mutex mutex_;  // guards the next two
  std::string why_;
  std::deque<std::array<char, kNewsBytes>>
      sent_;  // belongs to MPI for as long as the process lives
};

}  // namespace voltapile::comm
