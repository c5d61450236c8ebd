#include "open_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace forebay {

using rocksdb::Env;
using rocksdb::IOType;

namespace {

/// Ranges of at most this many bytes are sent to the engine as one message, which copies them; longer ranges separately, in place.
constexpr size_t kBatchBytesMax = 1 << 20;
/// While this many reads of a file exceeded their time limit and have not ended, further reads with a time limit fail.
constexpr size_t kLateReadsMax = 64;

/// Returns the class of a call: of its priority and its kind, as RocksDB gives them.
uint32_t ClassOf(const IOOptions &options) {
    if (options.type == IOType::kWAL || options.type == IOType::kManifest) return FB_CLASS_LOG;
    switch (options.rate_limiter_priority) {
        case Env::IO_LOW:
        case Env::IO_MID:
            return FB_CLASS_BACKGROUND;
        default:
            return FB_CLASS_DEFAULT;
    }
}

IOStatus NoSpace(const std::string &text) {
    IOStatus status = IOStatus::NoSpace(text);
    status.SetRetryable(true);
    return status;
}

}  // namespace

fb_outcome NewOutcome() {
    fb_outcome outcome{};
    outcome.size = sizeof outcome;
    outcome.code = FB_OTHER;
    return outcome;
}

bool IsLate() {
    static thread_local bool is_late = false;
    struct Mark {
        bool is_set = true;
        ~Mark() { is_late = true; }
    };
    if (is_late) return true;
    // Its destructor is one of the thread from here on.
    static thread_local Mark mark;
    return !mark.is_set;
}

IOStatus TimedOut(const std::string &path) { return IOStatus::TimedOut("the read did not end in time: " + path); }

std::chrono::steady_clock::time_point DeadlineOf(const IOOptions &options) {
    // The clock counts nanoseconds: it has no time for the end of a limit of 300 years.
    const std::chrono::microseconds longest = std::chrono::hours(24 * 365);
    return std::chrono::steady_clock::now() + std::min(options.timeout, longest);
}

int64_t NanosUntil(std::chrono::steady_clock::time_point then) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(then - std::chrono::steady_clock::now()).count();
    return left > 0 ? left : 0;
}

IOStatus SystemFailure(const std::string &what, const std::string &path, int number) {
    const std::string text = what + ": " + path + ": " + std::strerror(number);
    switch (number) {
        case ENOSPC:
        case EDQUOT:
            return NoSpace(text);
        case ENOENT:
            return IOStatus::PathNotFound(text);
        case ESTALE:
            return IOStatus::IOError(IOStatus::kStaleFile);
        default:
            return IOStatus::IOError(text);
    }
}

IOStatus StatusOf(int code, int os_error, const char *text) {
    const std::string sentence = text == nullptr || *text == '\0' ? fb_code_name(code) : text;
    switch (code) {
        case FB_OK:
            return IOStatus::OK();
        case FB_NO_SPACE:
            return NoSpace(sentence);
        case FB_NOT_FOUND:
            return IOStatus::PathNotFound(sentence);
        case FB_UNSUPPORTED:
            return IOStatus::NotSupported(sentence);
        case FB_CANCELLED:
            return IOStatus::Aborted(sentence);
        case FB_MEMORY_EXHAUSTED: {
            IOStatus status = IOStatus::IOError(sentence);
            status.SetRetryable(true);
            return status;
        }
        case FB_MEMORY_LOST:
            // RocksDB frees its memory when the call returns, and the device may write to it then.
            std::fprintf(stderr, "forebay: %s\n", sentence.c_str());
            std::abort();
        default:
            return os_error == ESTALE ? IOStatus::IOError(IOStatus::kStaleFile) : IOStatus::IOError(sentence);
    }
}

IOStatus Engine::Start(const fb_config *config, std::shared_ptr<Engine> *engine) {
    fb_engine *started = nullptr;
    IOStatus status = Call([&] { return fb_engine_start(config, &started); });
    if (status.ok()) *engine = std::make_shared<Engine>(started);
    return status;
}

IOStatus OpenFile::Open(const std::shared_ptr<Engine> &engine, const std::string &path, const Access &access,
                        std::shared_ptr<OpenFile> *file) {
    std::shared_ptr<OpenFile> opened(new OpenFile(engine, path, access));
    fb_open open_spec{};
    open_spec.size = sizeof open_spec;
    open_spec.access = access.access;
    open_spec.mode = access.is_direct ? FB_DIRECT : FB_BUFFERED;
    open_spec.permissions = 0644;
    open_spec.truncate = access.truncate ? 1 : 0;
    IOStatus status = Call([&] { return fb_file_open(engine->get(), path.c_str(), &open_spec, &opened->file_); });
    if (!status.ok()) return status;
    uint32_t memory = 1, offset = 1;
    status = StatusOf(fb_file_alignment(opened->file_, &memory, &offset));
    if (!status.ok()) return status;
    opened->alignment_ = memory > offset ? memory : offset;

    status = StatusOf(fb_file_descriptor(opened->file_, &opened->descriptor_));
    if (!status.ok()) return status;
    struct stat found;
    long version = 0;
    if (fstat(opened->descriptor_, &found) == 0 && ioctl(opened->descriptor_, FS_IOC_GETVERSION, &version) == 0) {
        opened->identity_[0] = found.st_dev;
        opened->identity_[1] = found.st_ino;
        opened->identity_[2] = static_cast<uint64_t>(version);
        opened->has_identity_ = true;
    }
    *file = std::move(opened);
    return IOStatus::OK();
}

OpenFile::~OpenFile() { Close().PermitUncheckedError(); }

IOStatus OpenFile::Close() {
    EndLate(-1);
    IOStatus status;
    if (file_ != nullptr) {
        status = Call([this] { return fb_file_close(file_); });
        file_ = nullptr;
    }
    // It was the handle's.
    descriptor_ = -1;
    return status;
}

fb_request OpenFile::Request(uint32_t op, const void *data, size_t len, uint64_t offset, const IOOptions &options) const {
    fb_request request{};
    request.size = sizeof request;
    request.file = file_;
    request.data = const_cast<void *>(data);
    request.len = len;
    request.offset = offset;
    request.op = op;
    request.class_id = ClassOf(options);
    return request;
}

IOStatus OpenFile::Read(uint64_t offset, size_t len, const IOOptions &options, Slice *result, char *scratch) {
    if (options.timeout.count() > 0) {
        FSReadRequest read;
        read.offset = offset;
        read.len = len;
        read.scratch = scratch;
        FSReadRequest *const reads[] = {&read};
        ReadWithin(reads, 1, options);
        *result = read.result;
        return read.status;
    }
    const fb_request request = Request(FB_OP_READ, scratch, len, offset, options);
    uint64_t bytes = 0;
    IOStatus status = Call([&] { return fb_run(&request, &bytes); });
    *result = Slice(scratch, status.ok() ? bytes : 0);
    return status;
}

void OpenFile::Finish(FSReadRequest *read, const fb_outcome &outcome, const IOOptions &options) {
    if (outcome.code == FB_MEMORY_EXHAUSTED) {
        // Others had it; alone and on this thread the read needs less.
        read->status = Read(read->offset, read->len, options, &read->result, read->scratch);
        return;
    }
    read->result = Slice(read->scratch, outcome.code == FB_OK ? outcome.bytes : 0);
    read->status = StatusOf(outcome.code, outcome.os_error, outcome.text);
}

void OpenFile::ReadAll(FSReadRequest *reads, size_t count, const IOOptions &options) {
    std::vector<FSReadRequest *> wanted;
    size_t bytes = 0;
    for (size_t n = 0; n < count; n++) {
        reads[n].result = Slice(reads[n].scratch, 0);
        reads[n].status = IOStatus::OK();
        if (reads[n].len > 0) wanted.push_back(&reads[n]);
        bytes += reads[n].len;
    }
    if (wanted.empty()) return;
    if (options.timeout.count() > 0) return ReadWithin(wanted.data(), wanted.size(), options);
    if (wanted.size() == 1 || bytes > kBatchBytesMax) return ReadEach(wanted.data(), wanted.size(), options);

    std::vector<fb_request> requests;
    requests.reserve(wanted.size());
    for (const FSReadRequest *read : wanted) {
        requests.push_back(Request(FB_OP_READ, read->scratch, read->len, read->offset, options));
    }
    fb_op *op = nullptr;
    if (fb_submit(requests.data(), requests.size(), nullptr, &op) != FB_OK) {
        return ReadEach(wanted.data(), wanted.size(), options);
    }
    fb_op_wait(op, -1, nullptr);
    for (size_t n = 0; n < wanted.size(); n++) {
        fb_outcome outcome = NewOutcome();
        fb_op_part(op, n, &outcome);
        Finish(wanted[n], outcome, options);
    }
    fb_op_free(op);
}

void OpenFile::ReadEach(FSReadRequest *const *reads, size_t count, const IOOptions &options) {
    std::vector<fb_op *> ops(count, nullptr);
    // The last one is this thread's.
    for (size_t n = 0; n + 1 < count; n++) {
        if (Submit(*reads[n], reads[n]->scratch, options, &ops[n]) != FB_OK) ops[n] = nullptr;
    }
    for (size_t n = count; n-- > 0;) {
        if (ops[n] == nullptr) {
            reads[n]->status = Read(reads[n]->offset, reads[n]->len, options, &reads[n]->result, reads[n]->scratch);
            continue;
        }
        fb_outcome outcome = NewOutcome();
        fb_op_wait(ops[n], -1, &outcome);
        Finish(reads[n], outcome, options);
        fb_op_free(ops[n]);
    }
}

// The device may write to the memory of a read after its time, and RocksDB frees its own when the call returns. So these reads have
// memory that stays until they have ended.
void OpenFile::ReadWithin(FSReadRequest *const *reads, size_t count, const IOOptions &options) {
    const auto deadline = DeadlineOf(options);
    std::vector<LateRead> begun(count, LateRead{nullptr, nullptr});
    // However many these are: one MultiRead may have more.
    const bool has_room = EndLate(0) < kLateReadsMax;
    for (size_t n = 0; n < count; n++) {
        reads[n]->result = Slice(reads[n]->scratch, 0);
        void *memory = nullptr;
        if (!has_room) {
            reads[n]->status = TimedOut(path_);
        } else if (posix_memalign(&memory, alignment_ < 4096 ? 4096 : alignment_, reads[n]->len) != 0) {
            reads[n]->status = IOStatus::IOError("no memory for a read with a time limit", path_);
        } else {
            begun[n].memory = static_cast<char *>(memory);
            const int code = Submit(*reads[n], begun[n].memory, options, &begun[n].op);
            if (code == FB_OK) continue;
            reads[n]->status = StatusOf(code);
            std::free(memory);
        }
        begun[n] = LateRead{nullptr, nullptr};
    }
    for (size_t n = 0; n < count; n++) {
        if (begun[n].op == nullptr) continue;
        fb_outcome outcome = NewOutcome();
        if (fb_op_wait(begun[n].op, NanosUntil(deadline), &outcome) == FB_PENDING) {
            reads[n]->status = TimedOut(path_);
            std::lock_guard<std::mutex> lock(late_mutex_);
            late_.push_back(begun[n]);
            continue;
        }
        if (outcome.code == FB_OK) {
            std::memcpy(reads[n]->scratch, begun[n].memory, outcome.bytes);
            reads[n]->result = Slice(reads[n]->scratch, outcome.bytes);
        }
        reads[n]->status = StatusOf(outcome.code, outcome.os_error, outcome.text);
        fb_op_free(begun[n].op);
        std::free(begun[n].memory);
    }
}

size_t OpenFile::EndLate(int64_t timeout_ns) {
    std::lock_guard<std::mutex> lock(late_mutex_);
    size_t left = 0;
    for (const LateRead &read : late_) {
        const int code = fb_op_wait(read.op, timeout_ns, nullptr);
        if (code == FB_PENDING) {
            late_[left++] = read;
            continue;
        }
        fb_op_free(read.op);
        // Memory that is lost is kept: the device may still write to it.
        if (code != FB_MEMORY_LOST) std::free(read.memory);
    }
    late_.resize(left);
    return left;
}

int OpenFile::Submit(const FSReadRequest &read, char *memory, const IOOptions &options, fb_op **op) {
    const fb_request request = Request(FB_OP_READ, memory, read.len, read.offset, options);
    return fb_submit(&request, 1, nullptr, op);
}

IOStatus OpenFile::Write(const Slice &data, uint64_t offset, const IOOptions &options) {
    const fb_request request = Request(FB_OP_WRITE, data.data(), data.size(), offset, options);
    return Call([&] { return fb_run(&request, nullptr); });
}

IOStatus OpenFile::Sync(uint32_t durability, const IOOptions &options) {
    fb_request request = Request(FB_OP_SYNC, nullptr, 0, 0, options);
    request.durability = durability;
    return Call([&] { return fb_run(&request, nullptr); });
}

IOStatus OpenFile::Len(uint64_t *len) {
    return Call([&] { return fb_file_len(file_, len); });
}

IOStatus OpenFile::SetLen(uint64_t len) {
    return Call([&] { return fb_file_set_len(file_, len); });
}

IOStatus OpenFile::DropCache(size_t offset, size_t len) {
    if (access_.is_direct) return IOStatus::OK();
    const int failure = posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(len), POSIX_FADV_DONTNEED);
    return failure == 0 ? IOStatus::OK() : SystemFailure("posix_fadvise", path_, failure);
}

size_t OpenFile::Identity(char *id, size_t max) const {
    // Varints of seven bits, as RocksDB's own: no identity is a prefix of another.
    constexpr size_t kVarintMax = 10;
    if (!has_identity_ || max < 3 * kVarintMax) return 0;
    char *end = id;
    for (uint64_t part : identity_) {
        for (; part >= 0x80; part >>= 7) *end++ = static_cast<char>(part | 0x80);
        *end++ = static_cast<char>(part);
    }
    return static_cast<size_t>(end - id);
}

}  // namespace forebay
