#include "datagrams.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <sstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "voltapile/base/host.hpp"

namespace voltapile::watch {

namespace {

constexpr size_t kMostBytes = 16384;
constexpr size_t kMostAddresses = 8;  // of a machine with many networks, the first
// Of a thousand ranks, between two looks.
constexpr int kBufferBytes = 4 << 20;

// Addresses of this machine that others may reach, as text.
std::vector<std::string> own_addresses(bool v6) {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* at = list; at != nullptr && found.size() < kMostAddresses;
       at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (at->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      if ((ntohl(address->sin_addr.s_addr) >> 24) == 127) continue;
      inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    } else if (v6 && at->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      if (IN6_IS_ADDR_LOOPBACK(&address->sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr))
        continue;
      inet_ntop(AF_INET6, &address->sin6_addr, text.data(), text.size());
    }
    if (text[0] != 0) found.emplace_back(text.data());
  }
  freeifaddrs(list);
  return found;
}

// Address and port of what the kernel gives, as text to compare.
std::string comparable(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return format("::ffff:{} {}", text.data(), ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return format("{} {}", text.data(), ntohs(v6.sin6_port));
}

// The kernel's form of an address; empty for text that is none.
std::string socket_address(const std::string& text, uint16_t port, bool v6) {
  if (!v6) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) return {};
    return {reinterpret_cast<const char*>(&address), sizeof(address)};
  }
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  const std::string mapped = text.find(':') == std::string::npos ? "::ffff:" + text : text;
  if (inet_pton(AF_INET6, mapped.c_str(), &address.sin6_addr) != 1) return {};
  return {reinterpret_cast<const char*>(&address), sizeof(address)};
}

}  // namespace

Datagrams::Datagrams(Communicator& world) : rank_(world.rank()) {
  open();
  if (rank_ == 0) {
    std::random_device random;
    job_ = (static_cast<uint64_t>(random()) << 32) | random();
  }
  const std::vector<std::string> introductions = world.gather_text(introduction());
  peers_.resize(introductions.size());
  for (int rank = 0; rank < size(); ++rank) meet(rank, introductions[static_cast<size_t>(rank)]);
}

Datagrams::~Datagrams() {
  if (socket_ >= 0) ::close(socket_);
}

void Datagrams::open() {
  socket_ = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int off = 0;
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  if (socket_ >= 0 &&
      (setsockopt(socket_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0 ||
       bind(socket_, reinterpret_cast<const sockaddr*>(&any6), sizeof(any6)) != 0)) {
    ::close(socket_);
    socket_ = -1;
  }
  if (socket_ < 0) {
    v6_ = false;
    socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    if (socket_ < 0 || bind(socket_, reinterpret_cast<const sockaddr*>(&any4), sizeof(any4)) != 0) {
      fault_ = format("no UDP socket on {}: {}", host_name(), std::strerror(errno));
      if (socket_ >= 0) ::close(socket_);
      socket_ = -1;
      return;
    }
  }
  setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof(kBufferBytes));
  // What a machine says of a port that nobody holds any more.
  const int on = 1;
  setsockopt(socket_, IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
  if (v6_) setsockopt(socket_, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof(on));
  sockaddr_in6 bound{};
  socklen_t length = sizeof(bound);
  getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &length);
  port_ = ntohs(v6_ ? bound.sin6_port : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

// "job host port address ..."
std::string Datagrams::introduction() const {
  std::string text = format("{} {} {}", job_, host_name(), port_);
  for (const std::string& address : own_addresses(v6_)) text += " " + address;
  return text;
}

void Datagrams::meet(int rank, const std::string& introduction) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  std::istringstream words(introduction);
  uint64_t job = 0;
  words >> job >> peer.host >> peer.port;
  if (rank == 0) job_ = job;
  if (peer.port == 0) return;
  std::set<std::string> addresses;
  if (peer.host == host_name()) addresses.insert("127.0.0.1");
  for (std::string address; words >> address;) addresses.insert(address);
  for (const std::string& address : addresses) {
    std::string form = socket_address(address, peer.port, v6_);
    if (!form.empty()) peer.addresses.push_back(std::move(form));
  }
}

void Datagrams::send(int rank, std::string_view text) const {
  if (socket_ < 0) return;
  std::string message = format("voltapile {} {} {}\n{}", job_, rank_, rank, text);
  message.resize(std::min(message.size(), kMostBytes));
  for (const std::string& address : peers_[static_cast<size_t>(rank)].addresses)
    sendto(socket_, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(address.data()),
           static_cast<socklen_t>(address.size()));
}

void Datagrams::hear_refusals() {
  while (true) {
    sockaddr_storage where{};
    std::array<char, 512> notes{};
    std::array<char, 64> sent{};
    iovec data{sent.data(), sent.size()};
    msghdr message{};
    message.msg_name = &where;
    message.msg_namelen = sizeof(where);
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = notes.data();
    message.msg_controllen = notes.size();
    if (recvmsg(socket_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (const cmsghdr* note = CMSG_FIRSTHDR(&message); note != nullptr;
         note = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(note))) {
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(note), sizeof(error));
      if (error.ee_errno != ECONNREFUSED) continue;
      const std::string address = comparable(where);
      for (Peer& peer : peers_)
        if (peer.heard_from == address) ++peer.refusals;
    }
  }
}

std::optional<Datagrams::Message> Datagrams::receive(std::chrono::milliseconds patience) {
  pollfd look{.fd = socket_, .events = POLLIN, .revents = 0};  // of no socket: only the time passes
  if (poll(&look, 1, static_cast<int>(patience.count())) <= 0) return std::nullopt;
  if ((look.revents & POLLERR) != 0) hear_refusals();
  std::array<char, kMostBytes> buffer;
  sockaddr_storage from{};
  socklen_t length = sizeof(from);
  const ssize_t got = recvfrom(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT,
                               reinterpret_cast<sockaddr*>(&from), &length);
  if (got <= 0) return std::nullopt;
  const std::string text(buffer.data(), static_cast<size_t>(got));
  const size_t head_end = text.find('\n');
  if (head_end == std::string::npos) return std::nullopt;
  std::istringstream head(text.substr(0, head_end));
  std::string word;
  uint64_t job = 0;
  Message message;
  int to = -1;
  head >> word >> job >> message.from >> to;
  const bool ours = head && word == "voltapile" && job == job_ && to == rank_ &&
                    0 <= message.from && message.from < size();
  if (!ours) return std::nullopt;
  message.text = text.substr(head_end + 1);
  Peer& peer = peers_[static_cast<size_t>(message.from)];
  peer.heard_from = comparable(from);
  peer.refusals = 0;
  return message;
}

}  // namespace voltapile::watch
