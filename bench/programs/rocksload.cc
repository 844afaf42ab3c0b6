// rocksload DIR BYTES THREADS: a closed loop of synced Puts in each thread. See
// bench/drive.Program for what it reads and prints.
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/version.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "count.h"

namespace {

constexpr uint64_t kKeepBytes = 128 << 20;
constexpr size_t kPayloadBytes = 64 << 20;

std::atomic<int> phase{WARMING};
std::atomic<uint64_t> last{0};
std::atomic<bool> trimming{false};
uint64_t first = 0;  // the oldest key that is kept; who holds trimming has it

void check(const rocksdb::Status &s) {
  if (s.ok()) return;
  std::cerr << s.ToString() << "\n";
  std::_Exit(1);
}

std::string key(uint64_t n) {
  n = __builtin_bswap64(n);
  return std::string(reinterpret_cast<char *>(&n), sizeof n);
}

// trim deletes the older half of the keys once there are twice as many as are kept.
void trim(rocksdb::DB *db, uint64_t n, size_t bytes) {
  if (trimming.exchange(true)) return;
  if (n > first && (n - first) * bytes >= 2 * kKeepBytes) {
    uint64_t before = n - kKeepBytes / bytes;
    check(db->DeleteRange(rocksdb::WriteOptions(), db->DefaultColumnFamily(), key(first), key(before)));
    first = before;
  }
  trimming = false;
}

void produce(rocksdb::DB *db, const unsigned char *payload, size_t bytes, size_t at, histogram *h) {
  rocksdb::WriteOptions synced;
  synced.sync = true;
  for (uint64_t due = now_ns(); phase != STOPPED;) {
    if (at + bytes > kPayloadBytes) at = (at + 37) % 4096;
    uint64_t n = ++last;
    check(db->Put(synced, key(n), rocksdb::Slice(reinterpret_cast<const char *>(payload) + at, bytes)));
    at += bytes;
    uint64_t now = now_ns();
    if (phase == MEASURING) record(h, now - due);
    due = now;
    trim(db, n, bytes);
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::cout << rocksdb::GetRocksVersionAsString() << "\n";
    return 0;
  }
  if (argc != 4) {
    std::cerr << "usage: rocksload DIR BYTES THREADS\n";
    return 2;
  }
  size_t bytes = std::strtoul(argv[2], nullptr, 10), threads = std::strtoul(argv[3], nullptr, 10);
  rocksdb::Options o;
  o.create_if_missing = true;
  o.write_buffer_size = 64 << 20;
  o.max_write_buffer_number = 4;
  o.compression = rocksdb::kNoCompression;
  o.enable_pipelined_write = true;
  o.recycle_log_file_num = 4;
  o.max_background_jobs = 2;
  rocksdb::DB *db;
  check(rocksdb::DB::Open(o, argv[1], &db));
  std::vector<unsigned char> payload(kPayloadBytes);
  random_bytes(payload.data(), payload.size());
  std::vector<histogram> counted(threads);
  std::vector<std::thread> producers;
  for (size_t i = 0; i < threads; i++)
    producers.emplace_back(produce, db, payload.data(), bytes, i * 1048573 % (kPayloadBytes - bytes), &counted[i]);
  std::puts("ready");
  std::fflush(stdout);
  do phase = next_phase();
  while (phase != STOPPED);
  for (auto &p : producers) p.join();
  histogram all{};
  for (auto &h : counted) {
    for (size_t i = 0; i < BUCKETS; i++) all.counts[i] += h.counts[i];
    all.total += h.total;
    all.max = std::max(all.max, h.max);
  }
  print_counted(&all);
  delete db;
}
