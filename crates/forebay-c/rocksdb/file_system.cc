// The file system: files by libforebay; names, directories, locks and lengths by POSIX calls, as they carry no data.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "files.h"
#include "forebay_rocksdb.h"

namespace forebay {

using rocksdb::DBOptions;
using rocksdb::FileLock;
using rocksdb::FileOptions;
using rocksdb::FSDirectory;
using rocksdb::Status;

namespace {

IOStatus StatusOfCall(int result, const char *what, const std::string &path) {
    return result == 0 ? IOStatus::OK() : SystemFailure(what, path, errno);
}

IOStatus Attributes(const std::string &path, struct stat *found) { return StatusOfCall(stat(path.c_str(), found), "stat", path); }

class Directory : public FSDirectory {
public:
    Directory(int descriptor, const std::string &path) : descriptor_(descriptor), path_(path) {}
    ~Directory() override { Close(IOOptions(), nullptr).PermitUncheckedError(); }

    IOStatus Fsync(const IOOptions &, IODebugContext *) override { return StatusOfCall(fsync(descriptor_), "fsync", path_); }
    IOStatus Close(const IOOptions &, IODebugContext *) override {
        if (descriptor_ < 0) return IOStatus::OK();
        const int result = close(descriptor_);
        descriptor_ = -1;
        return StatusOfCall(result, "close", path_);
    }

private:
    int descriptor_;
    std::string path_;
};

struct Lock : FileLock {
    explicit Lock(int descriptor) : descriptor(descriptor) {}
    int descriptor;
};

/// Locks an open file (F_WRLCK), or releases its lock (F_UNLCK).
int SetLock(int descriptor, short kind) {
    struct flock whole {};
    whole.l_type = kind;
    whole.l_whence = SEEK_SET;
    return fcntl(descriptor, F_OFD_SETLK, &whole);
}

/// Descriptors of lock files that RocksDB's own file system has locked in this process. The kernel releases such a lock, which is the
/// process's, with any descriptor of the file that the process closes. So these stay open for the next call.
class RefusedLocks {
public:
    /// Returns the descriptor that an earlier call has left of this file, or -1.
    int Take(const std::string &path) {
        struct stat found;
        if (stat(path.c_str(), &found) != 0) return -1;
        std::lock_guard<std::mutex> guard(mutex_);
        const auto left = descriptors_.find({found.st_dev, found.st_ino});
        if (left == descriptors_.end()) return -1;
        const int descriptor = left->second;
        descriptors_.erase(left);
        return descriptor;
    }

    /// Closes a descriptor whose lock was refused, unless the lock may be that of this process.
    void Leave(int descriptor) {
        struct flock holder {};
        holder.l_type = F_WRLCK;
        holder.l_whence = SEEK_SET;
        const bool is_known = fcntl(descriptor, F_OFD_GETLK, &holder) == 0 && holder.l_type != F_UNLCK;
        struct stat found;
        if ((is_known && holder.l_pid != getpid()) || fstat(descriptor, &found) != 0) {
            close(descriptor);
            return;
        }
        std::lock_guard<std::mutex> guard(mutex_);
        // Of two calls at a time each leaves a descriptor: the second one stays open, and is not used again.
        descriptors_.emplace(std::make_pair(found.st_dev, found.st_ino), descriptor);
    }

private:
    std::mutex mutex_;
    std::map<std::pair<dev_t, ino_t>, int> descriptors_;
};

/// Returns those of the process, as the locks are. They are never destroyed: databases of static objects are closed in exit().
RefusedLocks &Refused() {
    static RefusedLocks *const all = new RefusedLocks;
    return *all;
}

class ForebayFileSystem : public rocksdb::FileSystem {
public:
    explicit ForebayFileSystem(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

    static const char *kClassName() { return "forebay://"; }
    const char *Name() const override { return kClassName(); }

    // -- files

    IOStatus NewSequentialFile(const std::string &path, const FileOptions &options,
                               std::unique_ptr<rocksdb::FSSequentialFile> *result, IODebugContext *) override {
        return OpenToRead<SequentialFile>(path, options, result);
    }
    IOStatus NewRandomAccessFile(const std::string &path, const FileOptions &options,
                                 std::unique_ptr<rocksdb::FSRandomAccessFile> *result, IODebugContext *) override {
        return OpenToRead<RandomAccessFile>(path, options, result);
    }
    IOStatus NewWritableFile(const std::string &path, const FileOptions &options, std::unique_ptr<rocksdb::FSWritableFile> *result,
                             IODebugContext *) override {
        result->reset();
        std::shared_ptr<OpenFile> file;
        IOStatus status = OpenFile::Open(engine_, path, {FB_CREATE, options.use_direct_writes, true}, &file);
        if (status.ok()) result->reset(new WritableFile(std::move(file), options, 0));
        return status;
    }
    IOStatus ReopenWritableFile(const std::string &path, const FileOptions &options,
                                std::unique_ptr<rocksdb::FSWritableFile> *result, IODebugContext *) override {
        result->reset();
        std::shared_ptr<OpenFile> file;
        uint64_t len = 0;
        IOStatus status = OpenFile::Open(engine_, path, {FB_CREATE, options.use_direct_writes, false}, &file);
        if (status.ok()) status = file->Len(&len);
        if (status.ok()) result->reset(new WritableFile(std::move(file), options, len));
        return status;
    }
    IOStatus ReuseWritableFile(const std::string &path, const std::string &old_path, const FileOptions &options,
                               std::unique_ptr<rocksdb::FSWritableFile> *result, IODebugContext *debug) override {
        result->reset();
        std::shared_ptr<OpenFile> file;
        IOStatus status = OpenFile::Open(engine_, old_path, {FB_READ_WRITE, options.use_direct_writes, false}, &file);
        if (status.ok()) status = RenameFile(old_path, path, options.io_options, debug);
        // From its start on: records of a reused log have its number.
        if (status.ok()) result->reset(new WritableFile(std::move(file), options, 0));
        return status;
    }
    IOStatus NewRandomRWFile(const std::string &path, const FileOptions &, std::unique_ptr<rocksdb::FSRandomRWFile> *result,
                             IODebugContext *) override {
        result->reset();
        std::shared_ptr<OpenFile> file;
        IOStatus status = OpenFile::Open(engine_, path, {FB_READ_WRITE, false, false}, &file);
        if (status.ok()) result->reset(new RandomRWFile(std::move(file)));
        return status;
    }

    // -- reads started by ReadAsync

    IOStatus Poll(std::vector<void *> &io_handles, size_t) override {
        for (void *handle : io_handles) static_cast<AsyncRead *>(handle)->Finish();
        return IOStatus::OK();
    }
    IOStatus AbortIO(std::vector<void *> &io_handles) override {
        for (void *handle : io_handles) static_cast<AsyncRead *>(handle)->Abort();
        return IOStatus::OK();
    }

    // -- how files are opened. Logs and manifests are written in pieces of any length: never past the page cache.

    FileOptions OptimizeForLogWrite(const FileOptions &options, const DBOptions &db_options) const override {
        FileOptions optimized = rocksdb::FileSystem::OptimizeForLogWrite(options, db_options);
        optimized.use_direct_writes = false;
        return optimized;
    }
    FileOptions OptimizeForManifestWrite(const FileOptions &options) const override {
        FileOptions optimized = options;
        optimized.use_direct_writes = false;
        return optimized;
    }

    // -- names

    IOStatus NewDirectory(const std::string &path, const IOOptions &, std::unique_ptr<FSDirectory> *result,
                          IODebugContext *) override {
        result->reset();
        const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (descriptor < 0) return SystemFailure("open directory", path, errno);
        result->reset(new Directory(descriptor, path));
        return IOStatus::OK();
    }
    IOStatus FileExists(const std::string &path, const IOOptions &, IODebugContext *) override {
        if (access(path.c_str(), F_OK) == 0) return IOStatus::OK();
        const bool is_absent = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP || errno == EACCES;
        return is_absent ? IOStatus::NotFound(path) : SystemFailure("access", path, errno);
    }
    IOStatus GetChildren(const std::string &path, const IOOptions &, std::vector<std::string> *result, IODebugContext *) override {
        result->clear();
        DIR *directory = opendir(path.c_str());
        if (directory == nullptr) {
            const bool is_absent = errno == ENOENT || errno == ENOTDIR || errno == EACCES;
            return is_absent ? IOStatus::NotFound(path) : SystemFailure("opendir", path, errno);
        }
        errno = 0;
        while (const struct dirent *entry = readdir(directory)) {
            const std::string name = entry->d_name;
            if (name != "." && name != "..") result->push_back(name);
            errno = 0;
        }
        const int failure = errno;
        closedir(directory);
        return failure == 0 ? IOStatus::OK() : SystemFailure("readdir", path, failure);
    }
    IOStatus DeleteFile(const std::string &path, const IOOptions &, IODebugContext *) override {
        return StatusOfCall(unlink(path.c_str()), "unlink", path);
    }
    IOStatus Truncate(const std::string &path, size_t len, const IOOptions &, IODebugContext *) override {
        return StatusOfCall(truncate(path.c_str(), static_cast<off_t>(len)), "truncate", path);
    }
    IOStatus CreateDir(const std::string &path, const IOOptions &, IODebugContext *) override {
        return StatusOfCall(mkdir(path.c_str(), 0755), "mkdir", path);
    }
    IOStatus CreateDirIfMissing(const std::string &path, const IOOptions &, IODebugContext *) override {
        if (mkdir(path.c_str(), 0755) == 0) return IOStatus::OK();
        const int failure = errno;
        struct stat found;
        if (failure == EEXIST && stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return IOStatus::OK();
        return SystemFailure("mkdir", path, failure);
    }
    IOStatus DeleteDir(const std::string &path, const IOOptions &, IODebugContext *) override {
        return StatusOfCall(rmdir(path.c_str()), "rmdir", path);
    }
    IOStatus GetFileSize(const std::string &path, const IOOptions &, uint64_t *len, IODebugContext *) override {
        struct stat found;
        IOStatus status = Attributes(path, &found);
        *len = status.ok() ? static_cast<uint64_t>(found.st_size) : 0;
        return status;
    }
    IOStatus GetFileModificationTime(const std::string &path, const IOOptions &, uint64_t *seconds, IODebugContext *) override {
        struct stat found;
        IOStatus status = Attributes(path, &found);
        if (status.ok()) *seconds = static_cast<uint64_t>(found.st_mtime);
        return status;
    }
    IOStatus RenameFile(const std::string &from, const std::string &to, const IOOptions &, IODebugContext *) override {
        return StatusOfCall(rename(from.c_str(), to.c_str()), "rename", from + " to " + to);
    }
    IOStatus LinkFile(const std::string &from, const std::string &to, const IOOptions &, IODebugContext *) override {
        if (link(from.c_str(), to.c_str()) == 0) return IOStatus::OK();
        // RocksDB then copies.
        if (errno == EXDEV || errno == EOPNOTSUPP) return IOStatus::NotSupported("no link to another file system", to);
        return SystemFailure("link", from + " to " + to, errno);
    }
    IOStatus NumFileLinks(const std::string &path, const IOOptions &, uint64_t *count, IODebugContext *) override {
        struct stat found;
        IOStatus status = Attributes(path, &found);
        if (status.ok()) *count = found.st_nlink;
        return status;
    }
    IOStatus AreFilesSame(const std::string &one, const std::string &other, const IOOptions &, bool *is_same,
                          IODebugContext *) override {
        struct stat first, second;
        IOStatus status = Attributes(one, &first);
        if (status.ok()) status = Attributes(other, &second);
        if (status.ok()) *is_same = first.st_dev == second.st_dev && first.st_ino == second.st_ino;
        return status;
    }
    IOStatus IsDirectory(const std::string &path, const IOOptions &, bool *is_directory, IODebugContext *) override {
        struct stat found;
        IOStatus status = Attributes(path, &found);
        if (status.ok()) *is_directory = S_ISDIR(found.st_mode);
        return status;
    }
    IOStatus GetAbsolutePath(const std::string &path, const IOOptions &, std::string *absolute, IODebugContext *) override {
        if (!path.empty() && path[0] == '/') {
            *absolute = path;
            return IOStatus::OK();
        }
        char *here = getcwd(nullptr, 0);
        if (here == nullptr) return SystemFailure("getcwd", path, errno);
        *absolute = std::string(here) + "/" + path;
        std::free(here);
        return IOStatus::OK();
    }
    IOStatus GetTestDirectory(const IOOptions &options, std::string *path, IODebugContext *debug) override {
        const char *chosen = std::getenv("TEST_TMPDIR");
        *path = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp/rocksdbtest-" + std::to_string(geteuid());
        return CreateDirIfMissing(*path, options, debug);
    }
    /// The free space that recovery from a full disk waits for.
    IOStatus GetFreeSpace(const std::string &path, const IOOptions &, uint64_t *bytes, IODebugContext *) override {
        struct statvfs found;
        if (statvfs(path.c_str(), &found) != 0) return SystemFailure("statvfs", path, errno);
        *bytes = static_cast<uint64_t>(found.f_frsize) * (geteuid() == 0 ? found.f_bfree : found.f_bavail);
        return IOStatus::OK();
    }

    // A lock of the open file, not of the process: it conflicts with one of the same process, and with those of RocksDB's own file
    // system, here and elsewhere.
    IOStatus LockFile(const std::string &path, const IOOptions &, FileLock **lock, IODebugContext *) override {
        *lock = nullptr;
        int descriptor = Refused().Take(path);
        if (descriptor < 0) descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (descriptor < 0) return SystemFailure("open", path, errno);
        if (SetLock(descriptor, F_WRLCK) != 0) {
            const int failure = errno;
            Refused().Leave(descriptor);
            if (failure != EAGAIN && failure != EACCES) return SystemFailure("lock", path, failure);
            return IOStatus::IOError("lock: " + path + ": this process or another one has the lock");
        }
        *lock = new Lock(descriptor);
        return IOStatus::OK();
    }
    IOStatus UnlockFile(FileLock *lock, const IOOptions &, IODebugContext *) override {
        const std::unique_ptr<Lock> held(static_cast<Lock *>(lock));
        // A child that was forked meanwhile has the open file too: after the close alone it would keep the lock.
        const int failure = SetLock(held->descriptor, F_UNLCK) == 0 ? 0 : errno;
        const int result = close(held->descriptor);
        return failure == 0 ? StatusOfCall(result, "close", "lock") : SystemFailure("unlock", "lock", failure);
    }

private:
    template <class File, class Base>
    IOStatus OpenToRead(const std::string &path, const FileOptions &options, std::unique_ptr<Base> *result) {
        result->reset();
        // Its readers expect the file in their memory.
        if (options.use_mmap_reads) return IOStatus::NotSupported("allow_mmap_reads; use_direct_reads is faster", path);
        std::shared_ptr<OpenFile> file;
        IOStatus status = OpenFile::Open(engine_, path, {FB_READ_ONLY, options.use_direct_reads, false}, &file);
        if (status.ok()) result->reset(new File(std::move(file)));
        return status;
    }

    std::shared_ptr<Engine> engine_;
};

}  // namespace

Status NewRocksdbFileSystem(const fb_config *config, std::unique_ptr<rocksdb::FileSystem> *file_system) {
    std::shared_ptr<Engine> engine;
    Status status = Engine::Start(config, &engine);
    if (status.ok()) file_system->reset(new ForebayFileSystem(std::move(engine)));
    return status;
}

}  // namespace forebay
