// Private to watch: small messages between the ranks of a job, beside MPI.
//
// Why UDP, and not MPI or files: a watch must work while the thing it watches does not. MPI's own
// progress can stand still with a stopped peer (its shared-memory queues are spun on); files on a
// shared file system come late, and hang with it. A datagram to a stopped process is dropped once
// its buffer is full and holds up nobody; lost ones are made good by the next.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/comm/communicator.hpp"

namespace voltapile::watch {

class Datagrams {
 public:
  // Collective over `world`: everybody learns everybody's addresses. A rank whose machine gives it
  // no socket can neither send nor receive; fault() says why.
  explicit Datagrams(Communicator& world);
  ~Datagrams();
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  const std::string& fault() const { return fault_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  const std::string& host(int rank) const { return peers_[static_cast<size_t>(rank)].host; }

  // To all addresses of the rank, at once; never blocks, and may be lost.
  void send(int rank, std::string_view text) const;

  struct Message {
    int from = 0;
    std::string text;
  };
  // Waits for one of this job's messages for at most so long.
  std::optional<Message> receive(std::chrono::milliseconds patience);
  // How often an address from which the rank was heard has said that nobody is there any more,
  // since the last message of the rank.
  int refusals(int rank) const { return peers_[static_cast<size_t>(rank)].refusals; }

 private:
  // IPv6 as the kernel writes it; IPv4 mapped into it.
  struct Peer {
    std::string host;
    uint16_t port = 0;
    std::vector<std::string> addresses;
    std::string heard_from;  // one of them
    int refusals = 0;
  };
  void open();
  std::string introduction() const;
  void meet(int rank, const std::string& introduction);
  void hear_refusals();

  int rank_, socket_ = -1;
  bool v6_ = true;
  uint16_t port_ = 0;
  uint64_t job_ = 0;  // drawn at random by rank 0: keeps out other jobs' messages, and strangers'
  std::string fault_;
  std::vector<Peer> peers_;
};

}  // namespace voltapile::watch
