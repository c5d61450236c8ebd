// A process that writes a database is killed, over and over: each operation that it had reported is there afterwards, none in part, and
// no log is longer than its records. Arguments: a folder, and the number of rounds, which alternate between direct and buffered I/O.
// For vm/power-cut, with `--serve` instead: a folder, and the number of the machine's life.
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <random>

#include "../forebay_rocksdb.h"
#include "check.h"

namespace {

using namespace rocksdb;

constexpr uint64_t KEYS = 3000;
/// The version of a key that is not there; else it is the operation that put it.
constexpr uint64_t ABSENT = UINT64_MAX;

uint64_t mixed(uint64_t n) { return n * 0x9e3779b97f4a7c15u >> 20; }

std::string key_of(uint64_t key) { return "key" + std::to_string(10000 + key); }

std::string value_of(uint64_t key, uint64_t n) { return bytes_of(key * 7919 + n * 31, 50 + (key + n) % 3000); }

/// Calls `change` with each key that operation `n` puts, or removes where it says ABSENT.
void operation(uint64_t n, const std::function<void(uint64_t key, uint64_t version)> &change) {
    for (uint64_t part = 0; part <= mixed(n) % 3; part++) {
        change(mixed(n * 4 + part) % KEYS, part == 2 ? ABSENT : n);
    }
}

/// A database whose key "count" has the number of its operations. It belongs to the process to its end.
struct Database {
    DB *db = nullptr;

    Database(const std::string &path, bool is_direct, WALRecoveryMode recovery) {
        std::unique_ptr<FileSystem> files;
        OK(forebay::NewRocksdbFileSystem(nullptr, &files));
        Options options;
        options.env = NewCompositeEnv(std::shared_ptr<FileSystem>(std::move(files))).release();
        options.create_if_missing = true;
        options.use_direct_reads = options.use_direct_io_for_flush_and_compaction = is_direct;
        options.write_buffer_size = 128 << 10;
        options.target_file_size_base = 128 << 10;
        options.level0_file_num_compaction_trigger = 2;
        options.recycle_log_file_num = is_direct ? 2 : 0;
        options.wal_recovery_mode = recovery;
        options.paranoid_checks = true;
        OK(DB::Open(options, path, &db));
    }

    void run(uint64_t n, bool is_synced) {
        WriteBatch batch;
        operation(n, [&](uint64_t key, uint64_t version) {
            OK(version == ABSENT ? batch.Delete(key_of(key)) : batch.Put(key_of(key), value_of(key, version)));
        });
        OK(batch.Put("count", std::to_string(n + 1)));
        WriteOptions write;
        write.sync = is_synced;
        OK(db->Write(write, &batch));
    }

    /// Returns the number of operations, whose results are all that is there.
    uint64_t verify() {
        std::string count = "0";
        const Status found = db->Get(ReadOptions(), "count", &count);
        CHECK(found.ok() || found.IsNotFound());
        std::vector<uint64_t> versions(KEYS, ABSENT);
        for (uint64_t n = 0; n < std::stoull(count); n++) {
            operation(n, [&](uint64_t key, uint64_t version) { versions[key] = version; });
        }
        std::unique_ptr<Iterator> entries(db->NewIterator(ReadOptions()));
        entries->Seek("key");
        for (uint64_t key = 0; key < KEYS; key++) {
            if (versions[key] == ABSENT) continue;
            CHECK(entries->Valid() && entries->key() == key_of(key) && entries->value() == value_of(key, versions[key]));
            entries->Next();
        }
        CHECK(!entries->Valid());
        OK(entries->status());
        OK(db->VerifyChecksum());
        return std::stoull(count);
    }
};

/// A log whose last record is cut short has lost nothing that was reported; more than that is damage, but where logs are recycled.
Database after_a_kill(const std::string &path, bool is_direct) {
    return Database(path, is_direct,
                    is_direct ? WALRecoveryMode::kPointInTimeRecovery : WALRecoveryMode::kTolerateCorruptedTailRecords);
}

[[noreturn]] void write_until_killed(const std::string &path, bool is_direct, uint64_t from, int reports) {
    Database database = after_a_kill(path, is_direct);
    for (uint64_t n = from;; n++) {
        database.run(n, n % 16 == 0);
        CHECK(::write(reports, &n, sizeof n) == sizeof n);
    }
}

/// Says a number of operations, and goes on when it reads a line.
void say(const char *word, uint64_t count) {
    std::printf("%s %llu\n", word, static_cast<unsigned long long>(count));
    std::fflush(stdout);
    if (std::getchar() != '\n') _exit(0);
}

[[noreturn]] void serve(const std::string &path, uint64_t life) {
    Database database(path, life % 2 == 1, WALRecoveryMode::kPointInTimeRecovery);
    uint64_t n = database.verify();
    say("has", n);
    for (;; n++) {
        const bool is_synced = mixed(n + life) % 4 == 0;
        database.run(n, is_synced);
        if (is_synced) say("ack", n + 1);
    }
}

}  // namespace

int main(int count, char **arguments) {
    CHECK(count >= 3);
    if (count == 4 && std::strcmp(arguments[1], "--serve") == 0) serve(arguments[2], std::stoull(arguments[3]));
    const std::string folder = arguments[1];
    std::mt19937 random(7);
    uint64_t reported[2] = {0, 0};
    for (int round = 0; round < std::atoi(arguments[2]); round++) {
        const bool is_direct = round % 2 == 1;
        const std::string path = folder + (is_direct ? "/direct" : "/buffered");
        uint64_t &known = reported[is_direct];
        int ends[2];
        CHECK(pipe(ends) == 0);
        const pid_t writer = fork();
        CHECK(writer >= 0);
        if (writer == 0) write_until_killed(path, is_direct, known, ends[1]);
        close(ends[1]);
        uint64_t n = 0;
        for (uint64_t wanted = known + 1 + random() % 700; known < wanted; known = n + 1) CHECK(read(ends[0], &n, sizeof n) == sizeof n);
        kill(writer, SIGKILL);
        // Puts that it had reported by the time of the signal.
        while (read(ends[0], &n, sizeof n) == sizeof n) known = n + 1;
        close(ends[0]);
        int status = 0;
        CHECK(waitpid(writer, &status, 0) == writer && WIFSIGNALED(status));
        // In a separate process: this process never has threads, so that it can fork.
        const pid_t verifier = fork();
        CHECK(verifier >= 0);
        if (verifier == 0) {
            Database database = after_a_kill(path, is_direct);
            const uint64_t found = database.verify();
            // The last one may not have been reported. It is written again.
            CHECK(found == known || found == known + 1);
            OK(database.db->Close());
            std::exit(0);
        }
        CHECK(waitpid(verifier, &status, 0) == verifier && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    std::printf("%llu and %llu operations, none lost\nok\n", static_cast<unsigned long long>(reported[0]),
                static_cast<unsigned long long>(reported[1]));
    return 0;
}
