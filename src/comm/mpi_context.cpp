#include "mpi_context.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include <sched.h>

namespace voltapile::comm {
namespace {

constexpr int kNewsTag = 1;

// Two cores may carry four ranks with several waiting lanes each. A wait first looks a few times,
// then offers its core to others, then sleeps for a fixed part of the time already waited: late by
// at most that part, and with few wake-ups however long it takes.
class BackOff {
 public:
  // Returns true after a sleep: time to look at rarer things.
  bool pause() {
    ++looks_;
    if (looks_ <= kEagerLooks) return false;
    if (looks_ <= kEagerLooks + kYields) {
      sched_yield();
      return false;
    }
    const auto waited = Clock::now() - begin_;
    std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 16, kShortest, kLongest));
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kEagerLooks = 8, kYields = 32;
  static constexpr Clock::duration kShortest = std::chrono::microseconds(5);
  static constexpr Clock::duration kLongest = std::chrono::microseconds(500);
  int looks_ = 0;
  Clock::time_point begin_ = Clock::now();
};

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

std::string cause_of(int code, std::span<const MPI_Status> statuses) {
  if (code != MPI_ERR_IN_STATUS) return text_of(code);
  for (const MPI_Status& status : statuses) {
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
      return format("a message with rank {} of this communicator: {}", status.MPI_SOURCE,
                    text_of(status.MPI_ERROR));
  }
  return text_of(code);
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code != MPI_SUCCESS) throw Error(ExitCode::failure, format("{}: {}", what, text_of(code)));
}

MpiContext::MpiContext() {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(control_, &rank_);
  MPI_Comm_size(control_, &size_);
  check_mpi(MPI_Irecv(news_.data(), static_cast<int>(news_.size()), MPI_CHAR, MPI_ANY_SOURCE,
                      kNewsTag, control_, &pending_),
            "MPI_Irecv");
}

void MpiContext::close() {
  const std::lock_guard lock(listening_);
  closed_.store(true);
  if (pending_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&pending_);
    MPI_Wait(&pending_, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&control_);
}

std::string MpiContext::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void MpiContext::listen() {
  const std::unique_lock lock(listening_, std::try_to_lock);
  if (!lock.owns_lock() || pending_ == MPI_REQUEST_NULL || !usable()) return;
  int arrived = 0;
  check_mpi(MPI_Test(&pending_, &arrived, MPI_STATUS_IGNORE), "MPI_Test");
  if (arrived == 0) return;
  const std::lock_guard naming(mutex_);
  if (lost_.load()) return;
  why_ = news_.data();
  told_.store(true);
  lost_.store(true);
}

void MpiContext::abort(const std::string& why) {
  listen();
  const std::lock_guard lock(mutex_);
  if (!usable()) return;
  why_ = why;
  lost_.store(true);
  auto& text = sent_.emplace_back();
  std::memcpy(text.data(), why.data(), std::min(why.size(), text.size() - 1));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR, peer, kNewsTag, control_,
                  &request) != MPI_SUCCESS)
      continue;
    int sent = 0;
    MPI_Test(&request, &sent, MPI_STATUS_IGNORE);
    if (sent == 0) MPI_Request_free(&request);
  }
}

void MpiContext::throw_if_lost(const Endpoint& end) {
  listen();
  if (lost()) throw PeerFailure(format("{} was given up: {}", end.label(), why()));
}

void MpiContext::wait(std::span<MPI_Request> requests, std::span<MPI_Status> statuses,
                      const Endpoint& end) {
  // A finished message means that the other side is at work: the next will not be long.
  BackOff back_off;
  const int count = static_cast<int>(requests.size());
  std::vector<int> finished(requests.size());
  std::vector<MPI_Status> news(requests.size());
  for (int done = 0; done < count;) {
    int arrived = 0;
    const int code = MPI_Testsome(count, requests.data(), &arrived, finished.data(), news.data());
    if (arrived == MPI_UNDEFINED) return;
    const std::span<const MPI_Status> reports(news.data(), static_cast<size_t>(arrived));
    if (code != MPI_SUCCESS)
      throw Error(ExitCode::failure, end.label() + ": " + cause_of(code, reports));
    for (int i = 0; i < arrived; ++i)
      statuses[static_cast<size_t>(finished[static_cast<size_t>(i)])] =
          reports[static_cast<size_t>(i)];
    done += arrived;
    if (arrived > 0) back_off = BackOff();
    else if (back_off.pause()) throw_if_lost(end);
  }
}

}  // namespace voltapile::comm
