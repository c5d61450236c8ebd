// An engine, and an open file of it, as all kinds of files of the file system use them.
#ifndef FOREBAY_ROCKSDB_OPEN_FILE_H
#define FOREBAY_ROCKSDB_OPEN_FILE_H

#include <forebay.h>
#include <rocksdb/file_system.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace forebay {

using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

/// Returns the status of a system call that failed with this number.
IOStatus SystemFailure(const std::string &what, const std::string &path, int number);

/// Returns the status of an outcome.
IOStatus StatusOf(int code, int os_error, const char *text);

/// Returns the status of the thread's call that returned `code`.
inline IOStatus StatusOf(int code) {
    return code == FB_OK ? IOStatus::OK() : StatusOf(code, fb_error_os(), fb_error_text());
}

/// Returns an outcome to be filled: a failure if that does not happen, as in a forked child.
fb_outcome NewOutcome();

/// Returns whether the thread's local objects are destroyed: it is in exit(), where databases of static objects are closed.
bool IsLate();

/// Returns the status of a call of libforebay that may wait. This needs the thread's local objects; a late thread leaves it to
/// another one.
template <class Function>
IOStatus Call(Function call) {
    if (!IsLate()) return StatusOf(call());
    IOStatus status;
    std::thread([&] { status = StatusOf(call()); }).join();
    return status;
}

class Engine {
public:
    static IOStatus Start(const fb_config *config, std::shared_ptr<Engine> *engine);
    explicit Engine(fb_engine *engine) : engine_(engine) {}
    ~Engine() {
        Call([this] { return fb_engine_close(engine_, nullptr); }).PermitUncheckedError();
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    fb_engine *get() const { return engine_; }

private:
    fb_engine *engine_;
};

/// Returns the status of a read that RocksDB's time limit ended.
IOStatus TimedOut(const std::string &path);

/// How a file is opened.
struct Access {
    uint32_t access = FB_READ_ONLY;
    bool is_direct = false;
    bool truncate = false;
};

/// Returns the end of RocksDB's time limit for a call that starts now.
std::chrono::steady_clock::time_point DeadlineOf(const IOOptions &options);

/// Returns the nanoseconds until then, 0 if it has passed.
int64_t NanosUntil(std::chrono::steady_clock::time_point then);

/// An open file: the engine's handle, which has all its data. Its descriptor is for what libforebay has no call for: advice, space, the
/// start of write-back.
class OpenFile {
public:
    using Clock = std::chrono::steady_clock;

    static IOStatus Open(const std::shared_ptr<Engine> &engine, const std::string &path, const Access &access,
                         std::shared_ptr<OpenFile> *file);
    ~OpenFile();
    OpenFile(const OpenFile &) = delete;
    OpenFile &operator=(const OpenFile &) = delete;

    bool is_direct() const { return access_.is_direct; }
    size_t alignment() const { return alignment_; }
    int descriptor() const { return descriptor_; }
    const std::string &path() const { return path_; }

    /// Reads on the calling thread, up to the end of the file.
    IOStatus Read(uint64_t offset, size_t len, const IOOptions &options, Slice *result, char *scratch);
    /// Reads several ranges concurrently; each has its status.
    void ReadAll(FSReadRequest *reads, size_t count, const IOOptions &options);
    IOStatus Write(const Slice &data, uint64_t offset, const IOOptions &options);
    IOStatus Sync(uint32_t durability, const IOOptions &options);
    /// Starts a read into `memory`, and returns a code.
    int Submit(const FSReadRequest &read, char *memory, const IOOptions &options, fb_op **op);
    /// Puts the outcome of a read into its request.
    void Finish(FSReadRequest *read, const fb_outcome &outcome, const IOOptions &options);
    IOStatus Len(uint64_t *len);
    IOStatus SetLen(uint64_t len);
    IOStatus DropCache(size_t offset, size_t len);
    /// Writes an identity that no other file has while this file exists, and returns its length, or 0.
    size_t Identity(char *id, size_t max) const;
    IOStatus Close();

private:
    /// A read that was given up in time, and the memory that the device still may write to.
    struct LateRead {
        fb_op *op;
        char *memory;
    };

    OpenFile(const std::shared_ptr<Engine> &engine, const std::string &path, const Access &access)
        : engine_(engine), path_(path), access_(access) {}
    fb_request Request(uint32_t op, const void *data, size_t len, uint64_t offset, const IOOptions &options) const;
    void ReadEach(FSReadRequest *const *reads, size_t count, const IOOptions &options);
    void ReadWithin(FSReadRequest *const *reads, size_t count, const IOOptions &options);
    /// Frees what late reads have when they have ended, and returns how many have not.
    size_t EndLate(int64_t timeout_ns);

    std::shared_ptr<Engine> engine_;
    std::string path_;
    Access access_;
    fb_file *file_ = nullptr;
    int descriptor_ = -1;
    size_t alignment_ = 1;
    uint64_t identity_[3] = {0, 0, 0};
    bool has_identity_ = false;
    std::mutex late_mutex_;
    std::vector<LateRead> late_;
};

}  // namespace forebay

#endif
