// The kinds of files that RocksDB knows.
#ifndef FOREBAY_ROCKSDB_FILES_H
#define FOREBAY_ROCKSDB_FILES_H

#include <functional>

#include "open_file.h"

namespace forebay {

/// The type of ReadAsync's callback, which differs between versions of RocksDB.
template <class File, class Read, class Options, class Callback, class... Rest>
Callback CallbackOf(IOStatus (File::*)(Read, Options, Callback, Rest...));
using ReadCallback = decltype(CallbackOf(&rocksdb::FSRandomAccessFile::ReadAsync));

/// A read started by ReadAsync; RocksDB has it as `io_handle`.
class AsyncRead {
public:
    /// Copies the request.
    AsyncRead(const std::shared_ptr<OpenFile> &file, const FSReadRequest &request, const IOOptions &options, ReadCallback callback,
              void *argument);
    ~AsyncRead();
    AsyncRead(const AsyncRead &) = delete;
    AsyncRead &operator=(const AsyncRead &) = delete;

    /// Starts the read. After a failure no read is in flight.
    IOStatus Begin();
    /// Waits for the read, and calls the callback, once.
    void Finish();
    /// Waits until the kernel has left the memory of a read that RocksDB gave up. The callback frees RocksDB's record of the read, and
    /// is called for that, as RocksDB's own file system does.
    void Abort();

private:
    /// Waits for the end of the read, if any. It is not cancelled: a device does not abort a read in flight.
    bool End();

    std::shared_ptr<OpenFile> file_;
    FSReadRequest request_;
    IOOptions options_;
    ReadCallback callback_;
    void *argument_;
    fb_op *op_ = nullptr;
    OpenFile::Clock::time_point deadline_;
};

class SequentialFile : public rocksdb::FSSequentialFile {
public:
    explicit SequentialFile(std::shared_ptr<OpenFile> file) : file_(std::move(file)) {}

    IOStatus Read(size_t n, const IOOptions &options, Slice *result, char *scratch, IODebugContext *) override {
        IOStatus status = file_->Read(at_, n, options, result, scratch);
        at_ += result->size();
        return status;
    }
    IOStatus PositionedRead(uint64_t offset, size_t n, const IOOptions &options, Slice *result, char *scratch,
                            IODebugContext *) override {
        return file_->Read(offset, n, options, result, scratch);
    }
    IOStatus Skip(uint64_t n) override;
    bool use_direct_io() const override { return file_->is_direct(); }
    size_t GetRequiredBufferAlignment() const override { return file_->alignment(); }
    IOStatus InvalidateCache(size_t offset, size_t len) override { return file_->DropCache(offset, len); }

private:
    std::shared_ptr<OpenFile> file_;
    uint64_t at_ = 0;
};

class RandomAccessFile : public rocksdb::FSRandomAccessFile {
public:
    explicit RandomAccessFile(std::shared_ptr<OpenFile> file) : file_(std::move(file)) {}

    IOStatus Read(uint64_t offset, size_t n, const IOOptions &options, Slice *result, char *scratch,
                  IODebugContext *) const override {
        return file_->Read(offset, n, options, result, scratch);
    }
    IOStatus MultiRead(FSReadRequest *reads, size_t count, const IOOptions &options, IODebugContext *) override {
        file_->ReadAll(reads, count, options);
        return IOStatus::OK();
    }
    IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions &options, IODebugContext *) override;
    void Hint(AccessPattern pattern) override;
    IOStatus ReadAsync(FSReadRequest &read, const IOOptions &options, ReadCallback callback, void *argument, void **io_handle,
                       rocksdb::IOHandleDeleter *deleter, IODebugContext *) override;
    bool use_direct_io() const override { return file_->is_direct(); }
    size_t GetRequiredBufferAlignment() const override { return file_->alignment(); }
    IOStatus InvalidateCache(size_t offset, size_t len) override { return file_->DropCache(offset, len); }
    size_t GetUniqueId(char *id, size_t max) const override { return file_->Identity(id, max); }

private:
    std::shared_ptr<OpenFile> file_;
};

/// A file that grows at its end. Its length is that of what was written at any time: space ahead is allocated without changing it.
class WritableFile : public rocksdb::FSWritableFile {
public:
    WritableFile(std::shared_ptr<OpenFile> file, const rocksdb::FileOptions &options, uint64_t len)
        : rocksdb::FSWritableFile(options), file_(std::move(file)), len_(len), allocates_(options.allow_fallocate) {}
    ~WritableFile() override;

    // The other forms of both, which have checksums of the data, call these.
    using rocksdb::FSWritableFile::Append;
    IOStatus Append(const Slice &data, const IOOptions &options, IODebugContext *debug) override {
        return PositionedAppend(data, len_, options, debug);
    }
    IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &options, IODebugContext *) override;
    IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &options, const rocksdb::DataVerificationInfo &,
                              IODebugContext *debug) override {
        return PositionedAppend(data, offset, options, debug);
    }
    IOStatus Truncate(uint64_t len, const IOOptions &, IODebugContext *) override;
    IOStatus Close(const IOOptions &options, IODebugContext *debug) override;
    IOStatus Flush(const IOOptions &, IODebugContext *) override { return IOStatus::OK(); }
    IOStatus Sync(const IOOptions &options, IODebugContext *) override { return file_->Sync(FB_DURABLE_DATA, options); }
    IOStatus Fsync(const IOOptions &options, IODebugContext *) override { return file_->Sync(FB_DURABLE_ALL, options); }
    bool IsSyncThreadSafe() const override { return true; }
    bool use_direct_io() const override { return file_->is_direct(); }
    size_t GetRequiredBufferAlignment() const override { return file_->alignment(); }
    uint64_t GetFileSize(const IOOptions &, IODebugContext *) override { return len_; }
    IOStatus InvalidateCache(size_t offset, size_t len) override { return file_->DropCache(offset, len); }
    size_t GetUniqueId(char *id, size_t max) const override { return file_->Identity(id, max); }
    IOStatus RangeSync(uint64_t offset, uint64_t len, const IOOptions &options, IODebugContext *debug) override;
    IOStatus Allocate(uint64_t offset, uint64_t len, const IOOptions &, IODebugContext *) override;

private:
    std::shared_ptr<OpenFile> file_;
    uint64_t len_;
    bool allocates_;
    bool is_closed_ = false;
};

class RandomRWFile : public rocksdb::FSRandomRWFile {
public:
    explicit RandomRWFile(std::shared_ptr<OpenFile> file) : file_(std::move(file)) {}

    IOStatus Write(uint64_t offset, const Slice &data, const IOOptions &options, IODebugContext *) override {
        return file_->Write(data, offset, options);
    }
    IOStatus Read(uint64_t offset, size_t n, const IOOptions &options, Slice *result, char *scratch,
                  IODebugContext *) const override {
        return file_->Read(offset, n, options, result, scratch);
    }
    IOStatus Flush(const IOOptions &, IODebugContext *) override { return IOStatus::OK(); }
    IOStatus Sync(const IOOptions &options, IODebugContext *) override { return file_->Sync(FB_DURABLE_DATA, options); }
    IOStatus Fsync(const IOOptions &options, IODebugContext *) override { return file_->Sync(FB_DURABLE_ALL, options); }
    IOStatus Close(const IOOptions &, IODebugContext *) override { return file_->Close(); }

private:
    std::shared_ptr<OpenFile> file_;
};

}  // namespace forebay

#endif
