#include "nccl_watch.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace voltapile::cuda {
namespace {

constexpr std::chrono::milliseconds kTick(100);
constexpr double kLimitSeconds = 600;
// NCCL waits for peers when it frees a communicator; a process that ends does not, for long.
constexpr std::chrono::seconds kPatience(5);

struct Recording {
  bool active = false;
  unsigned long long number = 0;
  cudaGraph_t graph = nullptr;
};

Recording recording_on(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  Recording recording;
#if CUDART_VERSION >= 13000
  VP_CUDA(cudaStreamGetCaptureInfo(stream, &status, &recording.number, &recording.graph, nullptr,
                                   nullptr, nullptr));
#else
  VP_CUDA(cudaStreamGetCaptureInfo_v2(stream, &status, &recording.number, &recording.graph, nullptr,
                                      nullptr));
#endif
  recording.active = status == cudaStreamCaptureStatusActive;
  return recording;
}

std::string words_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) { return error.what(); } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

NcclEnd::NcclEnd(ncclComm_t comm, Context& context, Communicator& host)
    : comm_(comm),
      context_(&context),
      host_(&host),
      gpu_(context.gpu().ordinal),
      name_(host.name),
      place_(host.place) {
  for (cudaEvent_t* event : {&begun_, &ended_, &last_})
    VP_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}

void NcclEnd::free_events() {
  enter();
  for (cudaEvent_t event : {begun_, ended_, last_}) cudaEventDestroy(event);
}

std::string NcclEnd::label() const {
  const std::lock_guard lock(names_);
  return format("{} of '{}' on {}", call_, name_, place_);
}

void NcclEnd::set_label(const char* call, const std::string& name, const std::string& place) {
  const std::lock_guard lock(names_);
  call_ = call;
  if (name_ != name) name_ = name;
  if (place_ != place) place_ = place;
}

void NcclEnd::begin_call(cudaStream_t stream) {
  const Recording recording = recording_on(stream);
  if (recording.active) {
    if (recording.number != last_recording_) hold_by(recording.graph);
    last_recording_ = recording.number;
    return;
  }
  if (measuring_.load() != Measuring::nothing) return;
  {
    const std::lock_guard lock(names_);
    measured_ = call_;
  }
  VP_CUDA(cudaEventRecord(begun_, stream));
  measuring_.store(Measuring::being_enqueued);
}

void NcclEnd::end_call(cudaStream_t stream) {
  if (measuring_.load() != Measuring::being_enqueued) return;
  VP_CUDA(cudaEventRecord(ended_, stream));
  measuring_.store(Measuring::running);
}

void NcclEnd::record_last(cudaStream_t stream) {
  last_recorded_ = cudaEventRecord(last_, stream) == cudaSuccess;
}

// The graph's own destructor calls this back from a thread of the driver's, where CUDA must not be
// called: it only counts.
void NcclEnd::hold_by(cudaGraph_t graph) {
  auto* held = new std::shared_ptr<NcclEnd>(shared_from_this());
  graphs_.fetch_add(1);
  cudaUserObject_t object = nullptr;
  VP_CUDA(cudaUserObjectCreate(
      &object, held,
      [](void* pointer) {
        auto* end = static_cast<std::shared_ptr<NcclEnd>*>(pointer);
        (*end)->graphs_.fetch_sub(1);
        delete end;
      },
      1, cudaUserObjectNoDestructorSync));
  VP_CUDA(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
}

bool NcclEnd::is_quiet() const {
  enter();
  return graphs_.load() == 0 && (!last_recorded_ || cudaEventQuery(last_) != cudaErrorNotReady);
}

struct NcclWatch::Impl {
  using Ends = std::vector<std::shared_ptr<NcclEnd>>;
  std::mutex mutex;
  std::condition_variable changed;
  Ends ends;
  std::thread thread;
  bool stopping = false, woken = false, over = false;
  // The thread has begun a group of NCCL's with the abort of each communicator. That stops them at
  // once; what the group's end frees may be in use until owners and graphs are gone.
  bool aborting = false;
  std::atomic<double> limit{kLimitSeconds};

  void work();
  void look();
  void abort_all(const std::string& why);
  bool examine(NcclEnd& end, std::string& why) const;
  bool runs_too_long(NcclEnd& end) const;
  void free_aborted(std::unique_lock<std::mutex>& lock);
  void free_retired(std::unique_lock<std::mutex>& lock);
};

void NcclWatch::Impl::work() {
  std::unique_lock lock(mutex);
  while (!over) {
    if (ends.empty()) changed.wait(lock, [this] { return stopping || !ends.empty(); });
    else changed.wait_for(lock, kTick, [this] { return stopping || woken; });
    woken = false;
    look();
    free_aborted(lock);
    free_retired(lock);
    over = stopping;
  }
  changed.notify_all();
}

// What may block in the driver comes last: the cause may be a lane that waits for a lost rank.
bool NcclWatch::Impl::examine(NcclEnd& end, std::string& why) const {
  Context& context = *end.context_;
  try {
    if (context.failed()) std::rethrow_exception(context.failure());
    end.host_->poll_error();
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(end.comm_, &state), end.label());
    if (state != ncclInProgress) check_nccl(state, end.label());
    if (runs_too_long(end)) {
      const std::lock_guard lock(end.names_);
      throw Error(ExitCode::failure,
                  format("{} of '{}' on {} has been running for {:.0f} s: another rank of it is "
                         "lost or stuck",
                         end.measured_, end.name_, end.place_, limit.load()));
    }
    return false;
  } catch (...) {
    context.fail(std::current_exception());
    why = words_of(context.failure());
    return true;
  }
}

bool NcclWatch::Impl::runs_too_long(NcclEnd& end) const {
  if (end.measuring_.load() != NcclEnd::Measuring::running) return false;
  end.enter();
  const auto now = NcclEnd::Clock::now();
  if (!end.running_since_ && cudaEventQuery(end.begun_) == cudaSuccess) end.running_since_ = now;
  if (cudaEventQuery(end.ended_) != cudaErrorNotReady) {
    end.running_since_.reset();
    end.measuring_.store(NcclEnd::Measuring::nothing);
  }
  return end.running_since_ &&
         now - *end.running_since_ > std::chrono::duration<double>(limit.load());
}

void NcclWatch::Impl::look() {
  std::string why;
  bool failed = false;
  for (const auto& end : ends) {
    if (end->aborted()) continue;
    failed = end->doomed_ || failed;
    if (!end->retired_) failed = examine(*end, why) || failed;
  }
  if (failed) abort_all(why.empty() ? "its device failed" : why);
}

void NcclWatch::Impl::abort_all(const std::string& why) {
  if (!std::exchange(aborting, true)) ncclGroupStart();
  for (const auto& end : ends) {
    if (end->aborted()) continue;
    if (!end->retired_ && !end->context_->failed())
      end->context_->fail(
          std::make_exception_ptr(PeerFailure(format("{} was given up: {}", end->label(), why))));
    end->aborted_.store(true);
    ncclCommAbort(end->comm_);
  }
}

void NcclWatch::Impl::free_aborted(std::unique_lock<std::mutex>& lock) {
  const auto free = [](const auto& end) {
    return !end->aborted() || (end->retired_ && end->is_quiet());
  };
  if (!aborting || !std::all_of(ends.begin(), ends.end(), free)) return;
  const auto rest = std::stable_partition(ends.begin(), ends.end(),
                                          [](const auto& end) { return !end->aborted(); });
  const Ends gone(rest, ends.end());
  ends.erase(rest, ends.end());
  aborting = false;
  lock.unlock();
  ncclGroupEnd();
  for (const auto& end : gone) end->free_events();
  lock.lock();
}

// All of a rank together: NCCL frees a communicator only when its peers do too, and ranks may come
// to theirs in different orders.
void NcclWatch::Impl::free_retired(std::unique_lock<std::mutex>& lock) {
  if (aborting) return;  // the group is open
  std::set<const Context*> busy;
  for (const auto& end : ends)
    if (!end->retired_ || !end->is_quiet()) busy.insert(end->context_);
  const auto rest = std::stable_partition(
      ends.begin(), ends.end(), [&](const auto& end) { return busy.contains(end->context_); });
  if (rest == ends.end()) return;
  const Ends gone(rest, ends.end());
  ends.erase(rest, ends.end());
  lock.unlock();
  ncclGroupStart();
  for (const auto& end : gone) ncclCommDestroy(end->comm_);
  ncclGroupEnd();
  for (const auto& end : gone) end->free_events();
  lock.lock();
}

NcclWatch& NcclWatch::instance() {
  static NcclWatch watch;
  return watch;
}

std::shared_ptr<NcclWatch::Impl> NcclWatch::make_impl() { return std::make_shared<Impl>(); }

NcclWatch::~NcclWatch() {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->thread.joinable()) return;
  impl_->stopping = true;
  impl_->changed.notify_all();
  const bool over = impl_->changed.wait_for(lock, kPatience, [this] { return impl_->over; });
  lock.unlock();
  if (over) impl_->thread.join();
  else impl_->thread.detach();
}

void NcclWatch::set_limit(double seconds) { impl_->limit.store(seconds); }
double NcclWatch::limit_seconds() const { return impl_->limit.load(); }

std::shared_ptr<NcclEnd> NcclWatch::add(ncclComm_t comm, Context& context, Communicator& host) {
  const auto end = std::make_shared<NcclEnd>(comm, context, host);
  const std::lock_guard lock(impl_->mutex);
  impl_->ends.push_back(end);
  if (!impl_->thread.joinable()) impl_->thread = std::thread([impl = impl_] { impl->work(); });
  impl_->changed.notify_all();
  return end;
}

void NcclWatch::retire(const std::shared_ptr<NcclEnd>& end) {
  const std::lock_guard lock(impl_->mutex);
  end->doomed_ = end->context_->failed();
  end->retired_ = true;
  impl_->woken = true;
  impl_->changed.notify_all();
}

void NcclWatch::wake() {
  const std::lock_guard lock(impl_->mutex);
  impl_->woken = true;
  impl_->changed.notify_all();
}

}  // namespace voltapile::cuda
