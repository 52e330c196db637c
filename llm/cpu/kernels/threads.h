// Threads that share one call of the kernel.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace omni {

// Lets ``count`` threads wait for each other, again and again.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count), missing_(count) {}

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t round = round_;
    if (--missing_ == 0) {
      missing_ = count_;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  const int count_;
  int missing_;
  uint64_t round_ = 0;
};

// Workers sleep between calls: the cores are shared with encoders and gateway.
class Pool {
 public:
  // work(0) .. work(parts - 1), on this thread and others. Returns when all are done. Parts that
  // wait for each other run ``together``. Otherwise this thread takes what no other has begun, so
  // that a busy machine costs no more than the help it would have been.
  void run(int parts, bool together, const std::function<void(int)>& work) {
    std::lock_guard<std::mutex> one_call(calls_);
    std::unique_lock<std::mutex> lock(mutex_);
    for (; workers_ < parts - 1; ++workers_) std::thread(&Pool::serve, this).detach();
    work_ = &work;
    left_ = parts;
    next_ = 1;
    parts_ = parts;
    lock.unlock();
    wake_.notify_all();
    work(0);
    lock.lock();
    --left_;
    while (!together && next_ < parts_) take(lock);
    done_.wait(lock, [&] { return left_ == 0; });
  }

  // This process's pool. It is never taken down, for its threads do not end; a forked process
  // has none of them and makes its own.
  static Pool& own() {
    static std::mutex mutex;
    static Pool* pool;
    static pid_t owner;
    std::lock_guard<std::mutex> lock(mutex);
    if (owner != getpid()) {
      pool = new Pool;
      owner = getpid();
    }
    return *pool;
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return next_ < parts_; });
      take(lock);
    }
  }

  // Work on the next part; called and left with the lock held.
  void take(std::unique_lock<std::mutex>& lock) {
    const int part = next_++;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    work(part);
    lock.lock();
    if (--left_ == 0) done_.notify_one();
  }

  std::mutex calls_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int)>* work_ = nullptr;
  int workers_ = 0, parts_ = 0, next_ = 0, left_ = 0;
};

}  // namespace omni
