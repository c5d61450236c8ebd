// A database on the file system: written, compacted, read in every way, opened again, and compared with a model in memory; and that
// RocksDB's own file system has none of its files. Arguments: a folder, and optionally another on a small file system, which is
// filled.
#include <dlfcn.h>
#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "../forebay_rocksdb.h"
#include "check.h"

namespace {

std::mutex seen_mutex;
std::set<std::string> seen;

void note(const std::string &call, const std::string &path) {
    std::lock_guard<std::mutex> lock(seen_mutex);
    seen.insert(call + " " + path);
}

/// RocksDB's own file system, and the calls that it gets.
class Watched : public rocksdb::FileSystemWrapper {
public:
    using FileSystemWrapper::FileSystemWrapper;
    using Status = rocksdb::IOStatus;
    template <class File>
    using Result = std::unique_ptr<File> *;
    using Path = const std::string &;
    using Options = const rocksdb::FileOptions &;
    using Io = const rocksdb::IOOptions &;
    using Debug = rocksdb::IODebugContext *;
    const char *Name() const override { return "watched"; }

    Status NewSequentialFile(Path path, Options options, Result<rocksdb::FSSequentialFile> result, Debug debug) override {
        note("NewSequentialFile", path);
        return target()->NewSequentialFile(path, options, result, debug);
    }
    Status NewRandomAccessFile(Path path, Options options, Result<rocksdb::FSRandomAccessFile> result, Debug debug) override {
        note("NewRandomAccessFile", path);
        return target()->NewRandomAccessFile(path, options, result, debug);
    }
    Status NewWritableFile(Path path, Options options, Result<rocksdb::FSWritableFile> result, Debug debug) override {
        note("NewWritableFile", path);
        return target()->NewWritableFile(path, options, result, debug);
    }
    Status ReopenWritableFile(Path path, Options options, Result<rocksdb::FSWritableFile> result, Debug debug) override {
        note("ReopenWritableFile", path);
        return target()->ReopenWritableFile(path, options, result, debug);
    }
    Status ReuseWritableFile(Path path, Path old, Options options, Result<rocksdb::FSWritableFile> result, Debug debug) override {
        note("ReuseWritableFile", path);
        return target()->ReuseWritableFile(path, old, options, result, debug);
    }
    Status NewRandomRWFile(Path path, Options options, Result<rocksdb::FSRandomRWFile> result, Debug debug) override {
        note("NewRandomRWFile", path);
        return target()->NewRandomRWFile(path, options, result, debug);
    }
    Status NewDirectory(Path path, Io io, Result<rocksdb::FSDirectory> result, Debug debug) override {
        note("NewDirectory", path);
        return target()->NewDirectory(path, io, result, debug);
    }
    Status NewLogger(Path path, Io io, std::shared_ptr<rocksdb::Logger> *result, Debug debug) override {
        note("NewLogger", path);
        return target()->NewLogger(path, io, result, debug);
    }
    Status DeleteFile(Path path, Io io, Debug debug) override {
        note("DeleteFile", path);
        return target()->DeleteFile(path, io, debug);
    }
    Status RenameFile(Path from, Path to, Io io, Debug debug) override {
        note("RenameFile", from);
        return target()->RenameFile(from, to, io, debug);
    }
    Status LinkFile(Path from, Path to, Io io, Debug debug) override {
        note("LinkFile", from);
        return target()->LinkFile(from, to, io, debug);
    }
    Status LockFile(Path path, Io io, rocksdb::FileLock **lock, Debug debug) override {
        note("LockFile", path);
        return target()->LockFile(path, io, lock, debug);
    }
    Status FileExists(Path path, Io io, Debug debug) override {
        note("FileExists", path);
        return target()->FileExists(path, io, debug);
    }
    Status GetChildren(Path path, Io io, std::vector<std::string> *result, Debug debug) override {
        note("GetChildren", path);
        return target()->GetChildren(path, io, result, debug);
    }
    Status GetFileSize(Path path, Io io, uint64_t *len, Debug debug) override {
        note("GetFileSize", path);
        return target()->GetFileSize(path, io, len, debug);
    }
};

}  // namespace

// In place of the library's: what asks for RocksDB's own file system gets it watched.
std::shared_ptr<rocksdb::FileSystem> rocksdb::FileSystem::Default() {
    using Function = std::shared_ptr<FileSystem> (*)();
    static const auto &made = *new std::shared_ptr<FileSystem>([] {
        auto *const original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN7rocksdb10FileSystem7DefaultEv"));
        CHECK(original != nullptr);
        return std::make_shared<Watched>(original());
    }());
    return made;
}

namespace {

using namespace rocksdb;
using Model = std::map<std::string, std::string>;

std::string key_of(unsigned n) {
    char key[16];
    std::snprintf(key, sizeof key, "key%08u", n * 2654435761u % 100000);
    return key;
}

std::string value_of(unsigned n, unsigned round) { return bytes_of(n * 7919ull + round, n % 16 == 0 ? 9000 : 100 + n % 700); }

void check_all(DB *db, const Model &model, bool is_async) {
    ReadOptions options;
    options.async_io = is_async;
    options.readahead_size = is_async ? 65536 : 0;
    std::unique_ptr<Iterator> iterator(db->NewIterator(options));
    auto wanted = model.begin();
    for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next(), ++wanted) {
        CHECK(wanted != model.end() && iterator->key() == wanted->first && iterator->value() == wanted->second);
    }
    OK(iterator->status());
    CHECK(wanted == model.end());
    // Iterators that end with reads under way.
    for (unsigned n = 0; n < 40; n++) {
        iterator.reset(db->NewIterator(options));
        const auto from = model.lower_bound(key_of(n * 37));
        iterator->Seek(key_of(n * 37));
        CHECK(iterator->Valid() == (from != model.end()));
        if (iterator->Valid()) CHECK(iterator->key() == from->first && iterator->value() == from->second);
    }

    std::vector<std::string> keys;
    for (unsigned n = 0; n < 256; n++) keys.push_back(n % 5 == 0 ? "absent" + std::to_string(n) : key_of(n * 11));
    std::vector<Slice> slices(keys.begin(), keys.end());
    std::vector<PinnableSlice> values(keys.size());
    std::vector<Status> statuses(keys.size());
    db->MultiGet(options, db->DefaultColumnFamily(), keys.size(), slices.data(), values.data(), statuses.data());
    for (size_t n = 0; n < keys.size(); n++) {
        const auto found = model.find(keys[n]);
        if (found == model.end()) {
            CHECK(statuses[n].IsNotFound());
            continue;
        }
        OK(statuses[n]);
        CHECK(values[n] == found->second);
    }
}

Options options_for(Env *env, bool is_direct, bool has_blobs) {
    Options options;
    options.env = env;
    options.create_if_missing = true;
    options.write_buffer_size = 256 << 10;
    options.target_file_size_base = 256 << 10;
    options.use_direct_reads = options.use_direct_io_for_flush_and_compaction = is_direct;
    options.enable_blob_files = has_blobs;
    options.min_blob_size = 4096;
    options.recycle_log_file_num = 2;
    options.bytes_per_sync = options.wal_bytes_per_sync = 128 << 10;
    BlockBasedTableOptions table;
    table.no_block_cache = true;
    options.table_factory.reset(NewBlockBasedTableFactory(table));
    return options;
}

void database(Env *env, const std::string &path, bool is_direct, bool has_blobs) {
    const Options options = options_for(env, is_direct, has_blobs);
    Model model;
    for (unsigned round = 0; round < 3; round++) {
        DB *opened = nullptr, *second = nullptr;
        OK(DB::Open(options, path, &opened));
        std::unique_ptr<DB> db(opened);
        CHECK(!DB::Open(options, path, &second).ok());
        check_all(db.get(), model, false);
        for (unsigned n = 0; n < 4000; n++) {
            WriteOptions write;
            write.sync = n % 500 == 0;
            const std::string key = key_of(n * 3 + round), value = value_of(n, round);
            OK(db->Put(write, key, value));
            model[key] = value;
            if (n % 7 == 0) {
                OK(db->Delete(write, key_of(n)));
                model.erase(key_of(n));
            }
        }
        if (round != 1) OK(db->Flush(FlushOptions()));
        check_all(db.get(), model, true);
        if (round == 0) OK(db->CompactRange(CompactRangeOptions(), nullptr, nullptr));
        check_all(db.get(), model, round == 2);
        OK(db->VerifyChecksum());
        // With what is only in the log in the second round.
        OK(db->Close());
    }
    OK(DestroyDB(path, options));
}

/// The watch sees RocksDB's own file system where that is used.
void watched_database(const std::string &path) {
    DB *opened = nullptr;
    Options options;
    options.create_if_missing = true;
    OK(DB::Open(options, path, &opened));
    const std::unique_ptr<DB> db(opened);
    OK(db->Put(WriteOptions(), "key", "value"));
    OK(db->Flush(FlushOptions()));
    OK(db->Close());
    OK(DestroyDB(path, options));
    std::lock_guard<std::mutex> lock(seen_mutex);
    for (const char *kind : {"MANIFEST", ".log", ".sst"}) {
        CHECK(std::any_of(seen.begin(), seen.end(), [&](const std::string &call) { return call.find(kind) != std::string::npos; }));
    }
    seen.clear();
}

/// The end of a recovery, which RocksDB starts by itself.
class Recovery : public EventListener {
public:
    void OnErrorRecoveryEnd(const BackgroundErrorRecoveryInfo &info) override {
        std::lock_guard<std::mutex> lock(mutex_);
        is_over_ = is_over_ || info.new_bg_error.ok();
        changed_.notify_all();
    }
    bool Wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_.wait_for(lock, std::chrono::minutes(2), [this] { return is_over_; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_over_ = false;
};

/// RocksDB sees a full disk as a lack of space, and continues when space is free. Its info log lies elsewhere: 7.8 writes on to one that
/// met the full disk, which its own assertion ends (writable_file_writer.h), with any file system.
void full_disk(Env *env, const std::string &folder, const std::string &logs) {
    const std::string path = folder + "/db", filler = folder + "/filler";
    DB *opened = nullptr;
    Options options = options_for(env, false, false);
    options.recycle_log_file_num = 0;
    options.db_log_dir = logs;
    const auto recovery = std::make_shared<Recovery>();
    options.listeners.push_back(recovery);
    OK(DB::Open(options, path, &opened));
    const std::unique_ptr<DB> db(opened);
    const int descriptor = open(filler.c_str(), O_CREAT | O_WRONLY, 0644);
    uint64_t room = 0;
    OK(env->GetFileSystem()->GetFreeSpace(folder, IOOptions(), &room, nullptr));
    CHECK(descriptor >= 0 && room > (4 << 20) && fallocate(descriptor, 0, 0, static_cast<off_t>(room - (2 << 20))) == 0);

    Model model;
    Status status;
    unsigned n = 0;
    for (; status.ok(); n++) {
        CHECK(n < 100000);
        const std::string key = "full" + std::to_string(n), value = bytes_of(n, 1000);
        status = db->Put(WriteOptions(), key, value);
        if (status.ok()) model[key] = value;
    }
    // A put that waits for a flush which fails is incomplete, with the flush's reason.
    CHECK(status.IsNoSpace() || (status.IsIncomplete() && status.ToString().find("No space left") != std::string::npos));
    CHECK(close(descriptor) == 0 && unlink(filler.c_str()) == 0);
    CHECK(recovery->Wait());
    OK(db->Put(WriteOptions(), "again", "there is room"));
    model["again"] = "there is room";
    OK(db->Flush(FlushOptions()));
    for (const auto &[key, value] : model) {
        std::string found;
        OK(db->Get(ReadOptions(), key, &found));
        CHECK(found == value);
    }
    OK(db->Close());
    OK(DestroyDB(path, options));
}

}  // namespace

int main(int count, char **arguments) {
    CHECK(count == 2 || count == 3);
    Env *env = nullptr;
    std::shared_ptr<Env> guard;
    ConfigOptions config;
    config.ignore_unsupported_options = false;
    OK(Env::CreateFromUri(config, "", "forebay://", &env, &guard));
    const std::string folder = arguments[1];
    watched_database(folder + "/db");
    for (const bool is_direct : {false, true}) {
        for (const bool has_blobs : {false, true}) database(env, folder + "/db", is_direct, has_blobs);
    }
    if (count == 3) full_disk(env, arguments[2], folder);

    std::lock_guard<std::mutex> lock(seen_mutex);
    for (const std::string &call : seen) std::printf("RocksDB's own file system: %s\n", call.c_str());
    CHECK(seen.empty());
    std::puts("ok");
    return 0;
}
