// Each kind of file of the file system, and its names, in the folder of the first argument.
#include "../files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>

#include "../forebay_rocksdb.h"
#include "check.h"

using namespace rocksdb;

namespace {

constexpr size_t kLen = 3 << 20;
constexpr size_t kTail = 1000;
const IOOptions kIo;

std::unique_ptr<FileSystem> new_file_system() {
    std::unique_ptr<FileSystem> made;
    fb_config config{};
    config.size = sizeof config;
    config.shards = 1;
    const char *driver = std::getenv("FOREBAY_TEST_DRIVER");
    if (driver != nullptr && std::strcmp(driver, "threads") == 0) config.driver = FB_DRIVER_THREADS;
    OK(forebay::NewRocksdbFileSystem(&config, &made));
    return made;
}

FileOptions mode(bool is_direct) {
    FileOptions options;
    options.use_mmap_writes = false;
    options.use_direct_reads = options.use_direct_writes = is_direct;
    return options;
}

/// Memory as RocksDB has it for direct requests.
struct Memory {
    explicit Memory(size_t len) { CHECK(posix_memalign(&start, 4096, len) == 0); }
    ~Memory() { std::free(start); }
    char *get() const { return static_cast<char *>(start); }
    void *start = nullptr;
};

void write_file(FileSystem *fs, const std::string &path, bool is_direct) {
    std::unique_ptr<FSWritableFile> file;
    OK(fs->NewWritableFile(path, mode(is_direct), &file, nullptr));
    CHECK(file->use_direct_io() == is_direct);
    Memory memory(kLen);
    const std::string bytes = bytes_of(0, kLen);
    std::memcpy(memory.get(), bytes.data(), kLen);
    if (is_direct) {
        // As RocksDB's writer does it: in whole blocks, the last one padded, and cut at the end.
        const size_t block = file->GetRequiredBufferAlignment();
        CHECK(kLen % block == 0);
        for (size_t at = 0; at < kLen; at += 1 << 20) OK(file->PositionedAppend(Slice(memory.get() + at, 1 << 20), at, kIo, nullptr));
        OK(file->Truncate(kLen - kTail, kIo, nullptr));
    } else {
        for (size_t at = 0; at < kLen - kTail; at += 100000) {
            OK(file->Append(Slice(memory.get() + at, std::min<size_t>(100000, kLen - kTail - at)), kIo, nullptr));
            OK(file->RangeSync(0, at, kIo, nullptr));
        }
    }
    CHECK(file->GetFileSize(kIo, nullptr) == kLen - kTail);
    OK(file->Sync(kIo, nullptr));
    OK(file->Fsync(kIo, nullptr));
    OK(file->Close(kIo, nullptr));
    uint64_t len = 0;
    OK(fs->GetFileSize(path, kIo, &len, nullptr));
    CHECK(len == kLen - kTail);
}

void sequential(FileSystem *fs, const std::string &path, bool is_direct) {
    std::unique_ptr<FSSequentialFile> file;
    OK(fs->NewSequentialFile(path, mode(is_direct), &file, nullptr));
    Memory memory(1 << 20);
    Slice found;
    if (is_direct) {
        OK(file->PositionedRead(1 << 20, 1 << 20, kIo, &found, memory.get(), nullptr));
        CHECK(is_range(found, 1 << 20, 1 << 20));
        OK(file->PositionedRead(2 << 20, 1 << 20, kIo, &found, memory.get(), nullptr));
        CHECK(is_range(found, 2 << 20, (1 << 20) - kTail));
        return;
    }
    OK(file->Read(5000, kIo, &found, memory.get(), nullptr));
    CHECK(is_range(found, 0, 5000));
    OK(file->Skip(100));
    OK(file->Read(10, kIo, &found, memory.get(), nullptr));
    CHECK(is_range(found, 5100, 10));
    OK(file->Skip(1 << 30));
    OK(file->Read(10, kIo, &found, memory.get(), nullptr));
    CHECK(found.empty());
    OK(file->InvalidateCache(0, 0));
}

FSReadRequest request(uint64_t offset, size_t len, char *scratch) {
    FSReadRequest made;
    made.offset = offset;
    made.len = len;
    made.scratch = scratch;
    return made;
}

struct Arrived {
    std::thread::id thread;
    int calls = 0;
    std::string bytes;
    IOStatus status;
};

void arrived(const FSReadRequest &read, void *argument) {
    auto *arrived = static_cast<Arrived *>(argument);
    arrived->thread = std::this_thread::get_id();
    arrived->calls++;
    arrived->status = read.status;
    arrived->bytes = read.result.ToString();
}

void random_access(FileSystem *fs, const std::string &path, bool is_direct) {
    std::unique_ptr<FSRandomAccessFile> file;
    OK(fs->NewRandomAccessFile(path, mode(is_direct), &file, nullptr));
    CHECK(file->use_direct_io() == is_direct);
    CHECK(file->Prefetch(0, 65536, kIo, nullptr).IsNotSupported() == is_direct);
    Memory memory(kLen);
    Slice found;
    OK(file->Read(8192, 4096, kIo, &found, memory.get(), nullptr));
    CHECK(is_range(found, 8192, 4096));
    OK(file->Read(kLen + 8192, 4096, kIo, &found, memory.get(), nullptr));
    CHECK(found.empty());

    // A batch, one that is too long for a batch, and with a range that the file ends in and one behind it.
    for (const size_t len : {4096, 16384, 262144}) {
        std::vector<FSReadRequest> reads;
        for (size_t n = 0; n < 9; n++) reads.push_back(request(n * len, len, memory.get() + n * len));
        reads.push_back(request(kLen - 4096, 4096, memory.get() + kLen - 8192));
        reads.push_back(request(kLen + 4096, 4096, memory.get() + kLen - 4096));
        OK(file->MultiRead(reads.data(), reads.size(), kIo, nullptr));
        for (const FSReadRequest &read : reads) {
            OK(read.status);
            const size_t end = kLen - kTail, there = read.offset < end ? std::min(read.len, end - read.offset) : 0;
            CHECK(is_range(read.result, read.offset, there));
        }
    }

    // Started reads: the request may be destroyed, and Poll calls the callback, on this thread.
    constexpr size_t kReads = 12;
    std::vector<Arrived> results(kReads);
    std::vector<void *> handles(kReads, nullptr);
    std::vector<IOHandleDeleter> deleters(kReads);
    const auto begin = [&](size_t n) {
        FSReadRequest read = request(n * 65536, 65536, memory.get() + n * 65536);
        results[n] = Arrived();
        OK(file->ReadAsync(read, kIo, arrived, &results[n], &handles[n], &deleters[n], nullptr));
        read.offset = read.len = 0;
        read.scratch = nullptr;
    };
    for (size_t n = 0; n < kReads; n++) begin(n);
    for (const Arrived &result : results) CHECK(result.calls == 0);
    OK(fs->Poll(handles, 1));
    OK(fs->Poll(handles, kReads));
    for (size_t n = 0; n < kReads; n++) {
        CHECK(results[n].calls == 1 && results[n].thread == std::this_thread::get_id());
        OK(results[n].status);
        CHECK(results[n].bytes == bytes_of(n * 65536, 65536));
        deleters[n](handles[n]);
    }

    // Given up: nothing writes to the memory afterwards.
    for (size_t n = 0; n < kReads; n++) begin(n);
    OK(fs->AbortIO(handles));
    std::memset(memory.get(), 0x5a, kLen);
    OK(fs->Poll(handles, kReads));
    for (size_t n = 0; n < kReads; n++) {
        CHECK(results[n].calls == 1 && results[n].thread == std::this_thread::get_id());
        CHECK(results[n].status.IsAborted() && results[n].bytes.empty());
        deleters[n](handles[n]);
    }
    begin(0);
    deleters[0](handles[0]);
    std::memset(memory.get(), 0x5a, kLen);
    begin(1);
    std::vector<void *> one(1, handles[1]);
    OK(fs->Poll(one, 1));
    deleters[1](handles[1]);
    CHECK(std::count(memory.get(), memory.get() + 65536, 0x5a) == 65536);

    // A read that cannot start has no callback and no handle; an empty read has both.
    FSReadRequest wrong = request(UINT64_MAX, 4096, memory.get()), empty = request(4096, 0, memory.get());
    results[0] = results[1] = Arrived();
    handles[0] = handles[1] = nullptr;
    CHECK(!file->ReadAsync(wrong, kIo, arrived, &results[0], &handles[0], &deleters[0], nullptr).ok());
    CHECK(handles[0] == nullptr && results[0].calls == 0);
    OK(file->ReadAsync(empty, kIo, arrived, &results[1], &handles[1], &deleters[1], nullptr));
    one[0] = handles[1];
    OK(fs->Poll(one, 1));
    CHECK(results[1].calls == 1 && results[1].status.ok() && results[1].bytes.empty());
    deleters[1](handles[1]);

    // In time or not, each is one or the other, and the file closes with late reads.
    IOOptions hurried;
    hurried.timeout = std::chrono::microseconds(1);
    for (int n = 0; n < 100; n++) {
        const IOStatus status = file->Read(8192, 4096, hurried, &found, memory.get(), nullptr);
        CHECK(status.ok() ? is_range(found, 8192, 4096) : status.IsTimedOut() && found.empty());
    }
    FSReadRequest soon = request(8192, 65536, memory.get());
    results[0] = Arrived();
    OK(file->ReadAsync(soon, hurried, arrived, &results[0], &handles[0], &deleters[0], nullptr));
    one[0] = handles[0];
    OK(fs->Poll(one, 1));
    deleters[0](handles[0]);
    CHECK(results[0].calls == 1);
    CHECK(results[0].status.ok() ? results[0].bytes == bytes_of(8192, 65536) : results[0].status.IsTimedOut());
    std::memset(memory.get(), 0x5a, kLen);
    hurried.timeout = std::chrono::minutes(10);
    std::vector<FSReadRequest> reads = {request(0, 4096, memory.get()), request(65536, 4096, memory.get() + 65536)};
    OK(file->MultiRead(reads.data(), reads.size(), hurried, nullptr));
    for (const FSReadRequest &read : reads) CHECK(read.status.IsTimedOut() || is_range(read.result, read.offset, read.len));
}

size_t open_descriptors() {
    DIR *const folder = opendir("/proc/self/fd");
    CHECK(folder != nullptr);
    size_t count = 0;
    while (readdir(folder) != nullptr) count++;
    closedir(folder);
    return count;
}

/// A database with 600 tables did not open under the usual limit of 1,024 descriptors (Too many open files), where it opens on
/// RocksDB's own file system: a file that was written, or read through the page cache, had two.
void descriptors(FileSystem *fs, const std::string &path) {
    constexpr size_t kFiles = 40;
    std::vector<std::unique_ptr<FSRandomAccessFile>> read(kFiles);
    std::vector<std::unique_ptr<FSWritableFile>> written(kFiles);
    const size_t before = open_descriptors();
    for (auto &file : read) OK(fs->NewRandomAccessFile(path, mode(false), &file, nullptr));
    for (auto &file : written) OK(fs->ReopenWritableFile(path, mode(false), &file, nullptr));
    CHECK(open_descriptors() < before + 3 * kFiles);
}

/// A MultiRead of more than 64 ranges with a time limit was TimedOut at once, because it was counted with the reads that are late. So
/// was each read with a limit that stands for none, whose end overflowed the clock.
void time_limits(FileSystem *fs, const std::string &path, bool is_direct) {
    std::unique_ptr<FSRandomAccessFile> file;
    OK(fs->NewRandomAccessFile(path, mode(is_direct), &file, nullptr));
    Memory memory(kLen);
    constexpr size_t kReads = 200;
    for (const std::chrono::microseconds limit : {std::chrono::microseconds(std::chrono::minutes(10)), std::chrono::microseconds::max()}) {
        IOOptions limited;
        limited.timeout = limit;
        std::vector<FSReadRequest> reads;
        for (size_t n = 0; n < kReads; n++) reads.push_back(request(n * 8192, 4096, memory.get() + n * 4096));
        OK(file->MultiRead(reads.data(), reads.size(), limited, nullptr));
        for (const FSReadRequest &read : reads) {
            OK(read.status);
            CHECK(is_range(read.result, read.offset, read.len));
        }
        Slice found;
        OK(file->Read(8192, 4096, limited, &found, memory.get(), nullptr));
        CHECK(is_range(found, 8192, 4096));
        FSReadRequest started = request(4096, 4096, memory.get());
        Arrived result;
        void *handle = nullptr;
        IOHandleDeleter deleter;
        OK(file->ReadAsync(started, limited, arrived, &result, &handle, &deleter, nullptr));
        std::vector<void *> handles(1, handle);
        OK(fs->Poll(handles, 1));
        deleter(handle);
        OK(result.status);
        CHECK(result.bytes == bytes_of(4096, 4096));
    }
}

/// Returns how many pages of a file the page cache has.
size_t cached_pages(const std::string &path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(descriptor >= 0);
    struct stat found;
    CHECK(fstat(descriptor, &found) == 0);
    const size_t len = static_cast<size_t>(found.st_size);
    void *const start = mmap(nullptr, len, PROT_READ, MAP_SHARED, descriptor, 0);
    CHECK(start != MAP_FAILED);
    std::vector<unsigned char> pages(len / static_cast<size_t>(sysconf(_SC_PAGESIZE)) + 1);
    CHECK(mincore(start, len, pages.data()) == 0);
    CHECK(munmap(start, len) == 0 && close(descriptor) == 0);
    return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

/// RocksDB says of a table that it is read at random (advise_random_on_open), which was ignored: for blocks that lie next to each other
/// the page cache read ahead, and gets had other pages than those of RocksDB's own file system.
void hints(FileSystem *fs, const std::string &folder) {
    const std::string path = folder + "/hinted";
    OK(WriteStringToFile(fs, bytes_of(0, 1 << 20), path, true));
    std::unique_ptr<FSRandomAccessFile> file;
    OK(fs->NewRandomAccessFile(path, mode(false), &file, nullptr));
    OK(file->InvalidateCache(0, 0));
    // A file system in memory keeps them.
    if (cached_pages(path) == 0) {
        file->Hint(FSRandomAccessFile::kRandom);
        Memory memory(8192);
        Slice found;
        for (const uint64_t at : {0, 4096}) OK(file->Read(at, 4096, kIo, &found, memory.get(), nullptr));
        CHECK(is_range(found, 4096, 4096));
        CHECK(cached_pages(path) <= 4);
    }
    OK(fs->DeleteFile(path, kIo, nullptr));
}

void logs(FileSystem *fs, const std::string &folder) {
    const std::string path = folder + "/000007.log", old = folder + "/000003.log";
    FileOptions options = fs->OptimizeForLogWrite(mode(true), DBOptions());
    CHECK(!options.use_direct_writes && !fs->OptimizeForManifestWrite(mode(true)).use_direct_writes);
    std::unique_ptr<FSWritableFile> file;
    OK(fs->NewWritableFile(old, options, &file, nullptr));
    OK(file->Append("an old record", kIo, nullptr));
    OK(file->Close(kIo, nullptr));
    OK(fs->ReuseWritableFile(path, old, options, &file, nullptr));
    CHECK(fs->FileExists(old, kIo, nullptr).IsNotFound());
    CHECK(file->GetFileSize(kIo, nullptr) == 0);
    OK(file->Append("a new", kIo, nullptr));
    OK(file->Close(kIo, nullptr));
    OK(fs->ReopenWritableFile(path, options, &file, nullptr));
    CHECK(file->GetFileSize(kIo, nullptr) == 13);
    OK(file->Append(", reopened", kIo, nullptr));
    file.reset();
    std::string text;
    OK(ReadFileToString(fs, path, &text));
    CHECK(text == "a newd record, reopened");

    std::unique_ptr<FSRandomRWFile> both;
    CHECK(fs->NewRandomRWFile(old, options, &both, nullptr).IsPathNotFound());
    OK(fs->NewRandomRWFile(path, options, &both, nullptr));
    OK(both->Write(2, "NEW", kIo, nullptr));
    OK(both->Sync(kIo, nullptr));
    char bytes[5];
    Slice found;
    OK(both->Read(0, sizeof bytes, kIo, &found, bytes, nullptr));
    CHECK(found == "a NEW");
    OK(both->Close(kIo, nullptr));
    OK(fs->DeleteFile(path, kIo, nullptr));
}

void names(FileSystem *fs, const std::string &folder) {
    const std::string home = folder + "/names", one = home + "/one", other = home + "/other";
    OK(fs->CreateDir(home, kIo, nullptr));
    OK(fs->CreateDirIfMissing(home, kIo, nullptr));
    CHECK(!fs->CreateDir(home, kIo, nullptr).ok());
    OK(WriteStringToFile(fs, "text", one, true));
    OK(fs->LinkFile(one, other, kIo, nullptr));
    uint64_t count = 0;
    bool is = false;
    OK(fs->NumFileLinks(one, kIo, &count, nullptr));
    OK(fs->AreFilesSame(one, other, kIo, &is, nullptr));
    CHECK(count == 2 && is);
    OK(fs->IsDirectory(home, kIo, &is, nullptr));
    CHECK(is);
    std::vector<std::string> children;
    OK(fs->GetChildren(home, kIo, &children, nullptr));
    std::sort(children.begin(), children.end());
    CHECK(children == std::vector<std::string>({"one", "other"}));
    CHECK(fs->GetChildren(home + "/absent", kIo, &children, nullptr).IsNotFound());

    std::unique_ptr<FSRandomAccessFile> file, same;
    char id[64], same_id[64];
    OK(fs->NewRandomAccessFile(one, mode(false), &file, nullptr));
    OK(fs->NewRandomAccessFile(other, mode(true), &same, nullptr));
    const size_t len = file->GetUniqueId(id, sizeof id);
    CHECK(len == same->GetUniqueId(same_id, sizeof same_id) && std::memcmp(id, same_id, len) == 0);
    FileOptions mapped = mode(false);
    mapped.use_mmap_reads = true;
    CHECK(fs->NewRandomAccessFile(one, mapped, &file, nullptr).IsNotSupported());

    OK(fs->RenameFile(other, home + "/third", kIo, nullptr));
    OK(fs->Truncate(one, 2, kIo, nullptr));
    OK(fs->GetFileSize(one, kIo, &count, nullptr));
    CHECK(count == 2);
    OK(fs->GetFreeSpace(home, kIo, &count, nullptr));
    CHECK(count > 0);
    std::unique_ptr<FSDirectory> directory;
    OK(fs->NewDirectory(home, kIo, &directory, nullptr));
    OK(directory->FsyncWithDirOptions(kIo, nullptr, DirFsyncOptions()));
    OK(directory->Close(kIo, nullptr));
    CHECK(fs->DeleteFile(other, kIo, nullptr).IsPathNotFound());
    for (const char *name : {"/one", "/third"}) OK(fs->DeleteFile(home + name, kIo, nullptr));
    OK(fs->DeleteDir(home, kIo, nullptr));
}

/// A lock belongs to its open file: refused in the process that has it, and to RocksDB's own file system.
void locks(FileSystem *fs, const std::string &folder) {
    const std::string path = folder + "/LOCK";
    const std::shared_ptr<FileSystem> own = FileSystem::Default();
    FileLock *lock = nullptr, *second = nullptr;
    OK(fs->LockFile(path, kIo, &lock, nullptr));
    CHECK(!fs->LockFile(path, kIo, &second, nullptr).ok() && second == nullptr);
    CHECK(!own->LockFile(path, kIo, &second, nullptr).ok());
    OK(fs->UnlockFile(lock, kIo, nullptr));
    OK(own->LockFile(path, kIo, &lock, nullptr));
    // A program had a database open with RocksDB's own file system, and opened it with this one as well. That was refused, but with
    // the descriptor of the refused lock the kernel released RocksDB's own: another process could open the database beside it.
    for (int round = 0; round < 3; round++) CHECK(!fs->LockFile(path, kIo, &second, nullptr).ok() && second == nullptr);
    const int probe = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct flock holder {};
    holder.l_type = F_WRLCK;
    holder.l_whence = SEEK_SET;
    CHECK(fcntl(probe, F_OFD_GETLK, &holder) == 0);
    CHECK(holder.l_type == F_WRLCK && holder.l_pid == getpid());
    OK(own->UnlockFile(lock, kIo, nullptr));
    close(probe);
    OK(fs->LockFile(path, kIo, &lock, nullptr));
    // A program forked a worker while its database was open, and closed the database. The worker had the lock's open file too, so the
    // database could not be opened again before the worker ended.
    const pid_t worker = fork();
    CHECK(worker >= 0);
    if (worker == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    OK(fs->UnlockFile(lock, kIo, nullptr));
    OK(own->LockFile(path, kIo, &lock, nullptr));
    OK(own->UnlockFile(lock, kIo, nullptr));
    CHECK(kill(worker, SIGKILL) == 0 && waitpid(worker, nullptr, 0) == worker);
    OK(fs->DeleteFile(path, kIo, nullptr));
}

/// The class is each call's: two reads of one file have two.
void classes(const std::string &path) {
    std::shared_ptr<forebay::Engine> engine;
    OK(forebay::Engine::Start(nullptr, &engine));
    std::shared_ptr<forebay::OpenFile> file;
    OK(forebay::OpenFile::Open(engine, path, {FB_READ_ONLY, true, false}, &file));
    Memory memory(4096);
    Slice found;
    IOOptions low = kIo, log = kIo;
    low.rate_limiter_priority = Env::IO_LOW;
    log.type = IOType::kWAL;
    for (const IOOptions &options : {kIo, low, log}) OK(file->Read(0, 4096, options, &found, memory.get()));
    std::string text(1 << 20, 0);
    CHECK(fb_engine_metrics(engine->get(), text.data(), text.size(), nullptr) == FB_OK);
    for (const std::string name : {"default", "background", "log"}) {
        const size_t at = text.find("forebay_flow_reads_total{class=\"" + name + "\"");
        CHECK(at != std::string::npos && text.compare(text.find("} ", at), 4, "} 1\n") == 0);
    }
}

/// A static object that is destroyed in exit(), when the thread's local objects are destroyed already: its files work, and the
/// engine ends.
struct Late {
    Late(std::unique_ptr<FileSystem> files, const std::string &folder) : fs(std::move(files)), path(folder + "/late") {
        OK(WriteStringToFile(fs.get(), "in time", path, true));
        OK(fs->NewRandomAccessFile(path, mode(false), &file, nullptr));
    }
    ~Late() {
        OK(WriteStringToFile(fs.get(), "late as it is", path, true));
        char bytes[4];
        Slice found;
        OK(file->Read(0, sizeof bytes, kIo, &found, bytes, nullptr));
        CHECK(found == "late");
        OK(fs->DeleteFile(path, kIo, nullptr));
        file.reset();
        fs.reset();
        std::puts("ok");
    }
    std::unique_ptr<FileSystem> fs;
    std::string path;
    std::unique_ptr<FSRandomAccessFile> file;
};

/// A process writes a log with space that is allocated ahead, and is killed.
void write_and_die(const std::string &path) {
    const std::unique_ptr<FileSystem> fs = new_file_system();
    std::unique_ptr<FSWritableFile> file;
    OK(fs->NewWritableFile(path, fs->OptimizeForLogWrite(mode(false), DBOptions()), &file, nullptr));
    file->SetPreallocationBlockSize(4 << 20);
    file->PrepareWrite(0, 100, kIo, nullptr);
    OK(file->Append(Slice(bytes_of(0, 100)), kIo, nullptr));
    kill(getpid(), SIGKILL);
}

void killed_log(const std::string &path) {
    struct stat found;
    CHECK(stat(path.c_str(), &found) == 0);
    CHECK(found.st_size == 100);
    CHECK(unlink(path.c_str()) == 0);
}

}  // namespace

int main(int count, char **arguments) {
    CHECK(count == 2);
    const std::string folder = arguments[1], path = folder + "/data", log = folder + "/000001.log";
    // Before any thread starts.
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) write_and_die(log);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    killed_log(log);

    std::unique_ptr<FileSystem> fs = new_file_system();
    for (const bool is_direct : {false, true}) {
        write_file(fs.get(), path, is_direct);
        for (const bool reads_direct : {false, true}) {
            sequential(fs.get(), path, reads_direct);
            random_access(fs.get(), path, reads_direct);
            time_limits(fs.get(), path, reads_direct);
        }
    }
    logs(fs.get(), folder);
    names(fs.get(), folder);
    locks(fs.get(), folder);
    descriptors(fs.get(), path);
    hints(fs.get(), folder);
    classes(path);
    OK(fs->DeleteFile(path, kIo, nullptr));
    static const Late late(std::move(fs), folder);
    return 0;
}
