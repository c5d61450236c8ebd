#include "files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace forebay {

AsyncRead::AsyncRead(const std::shared_ptr<OpenFile> &file, const FSReadRequest &request, const IOOptions &options,
                     ReadCallback callback, void *argument)
    : file_(file), options_(options), callback_(std::move(callback)), argument_(argument) {
    request_.offset = request.offset;
    request_.len = request.len;
    request_.scratch = request.scratch;
}

AsyncRead::~AsyncRead() { End(); }

IOStatus AsyncRead::Begin() {
    deadline_ = DeadlineOf(options_);
    return StatusOf(file_->Submit(request_, request_.scratch, options_, &op_));
}

void AsyncRead::Finish() {
    if (op_ == nullptr) return;
    fb_outcome outcome = NewOutcome();
    const bool is_late = options_.timeout.count() > 0 && fb_op_wait(op_, NanosUntil(deadline_), nullptr) == FB_PENDING;
    // RocksDB's memory is in use until the end.
    fb_op_wait(op_, -1, &outcome);
    file_->Finish(&request_, outcome, options_);
    if (is_late) {
        request_.result = Slice(request_.scratch, 0);
        request_.status = TimedOut(file_->path());
    }
    fb_op_free(op_);
    op_ = nullptr;
    callback_(request_, argument_);
}

bool AsyncRead::End() {
    if (op_ == nullptr) return false;
    fb_outcome outcome = NewOutcome();
    fb_op_wait(op_, -1, &outcome);
    // Ends the process where the memory is lost.
    StatusOf(outcome.code, outcome.os_error, outcome.text).PermitUncheckedError();
    fb_op_free(op_);
    op_ = nullptr;
    return true;
}

void AsyncRead::Abort() {
    if (!End()) return;
    request_.status = IOStatus::Aborted();
    callback_(request_, argument_);
}

IOStatus SequentialFile::Skip(uint64_t n) {
    uint64_t len = 0;
    IOStatus status = file_->Len(&len);
    if (status.ok() && at_ < len) at_ += std::min(n, len - at_);
    return status;
}

IOStatus RandomAccessFile::Prefetch(uint64_t offset, size_t n, const IOOptions &, IODebugContext *) {
    // RocksDB then reads ahead into its own memory.
    if (file_->is_direct()) return IOStatus::NotSupported("Prefetch of a file that is read past the page cache");
    if (readahead(file_->descriptor(), static_cast<off_t>(offset), n) == 0) return IOStatus::OK();
    return SystemFailure("readahead", file_->path(), errno);
}

void RandomAccessFile::Hint(AccessPattern pattern) {
    if (file_->is_direct()) return;
    int advice = POSIX_FADV_NORMAL;
    switch (pattern) {
        case kRandom:
            advice = POSIX_FADV_RANDOM;
            break;
        case kSequential:
            advice = POSIX_FADV_SEQUENTIAL;
            break;
        case kWillNeed:
            advice = POSIX_FADV_WILLNEED;
            break;
        case kWontNeed:
            advice = POSIX_FADV_DONTNEED;
            break;
        default:
            break;
    }
    // A failure costs only speed.
    (void)posix_fadvise(file_->descriptor(), 0, 0, advice);
}

IOStatus RandomAccessFile::ReadAsync(FSReadRequest &read, const IOOptions &options, ReadCallback callback, void *argument,
                                     void **io_handle, rocksdb::IOHandleDeleter *deleter, IODebugContext *) {
    auto begun = std::make_unique<AsyncRead>(file_, read, options, std::move(callback), argument);
    IOStatus status = begun->Begin();
    if (!status.ok()) return status;
    *io_handle = begun.release();
    *deleter = [](void *handle) { delete static_cast<AsyncRead *>(handle); };
    return status;
}

WritableFile::~WritableFile() { Close(IOOptions(), nullptr).PermitUncheckedError(); }

IOStatus WritableFile::PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &options, IODebugContext *) {
    IOStatus status = file_->Write(data, offset, options);
    // After a failure the same range is written again, or the file ends here.
    if (status.ok()) len_ = offset + data.size();
    return status;
}

IOStatus WritableFile::Truncate(uint64_t len, const IOOptions &, IODebugContext *) {
    IOStatus status = file_->SetLen(len);
    if (status.ok()) len_ = len;
    return status;
}

IOStatus WritableFile::Close(const IOOptions &, IODebugContext *) {
    if (is_closed_) return IOStatus::OK();
    is_closed_ = true;
    size_t block = 0, allocated_blocks = 0;
    GetPreallocationStatus(&block, &allocated_blocks);
    if (allocated_blocks > 0) {
        // Gives back space that was allocated ahead: some file systems do it for the one call, some for the other. A failure costs
        // only the space.
        file_->SetLen(len_).PermitUncheckedError();
        const off_t end = static_cast<off_t>(block * allocated_blocks), len = static_cast<off_t>(len_);
        if (allocates_ && end > len) {
            (void)!fallocate(file_->descriptor(), FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, len, end - len);
        }
    }
    return file_->Close();
}

IOStatus WritableFile::RangeSync(uint64_t offset, uint64_t len, const IOOptions &options, IODebugContext *debug) {
    if (file_->is_direct()) return IOStatus::OK();
    const off_t start = static_cast<off_t>(offset), bytes = static_cast<off_t>(len);
    // With a strict limit earlier write-back has ended before more is started.
    const int failed =
        strict_bytes_per_sync_
            ? sync_file_range(file_->descriptor(), 0, start + bytes, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE)
            : sync_file_range(file_->descriptor(), start, bytes, SYNC_FILE_RANGE_WRITE);
    if (failed == 0) return IOStatus::OK();
    if (errno == ENOSYS) return rocksdb::FSWritableFile::RangeSync(offset, len, options, debug);
    return SystemFailure("sync_file_range", file_->path(), errno);
}

IOStatus WritableFile::Allocate(uint64_t offset, uint64_t len, const IOOptions &, IODebugContext *) {
    if (!allocates_) return IOStatus::OK();
    // Never the length: after a crash a log would have zeros behind its end.
    if (fallocate(file_->descriptor(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(len)) == 0) {
        return IOStatus::OK();
    }
    return SystemFailure("fallocate", file_->path(), errno);
}

}  // namespace forebay
