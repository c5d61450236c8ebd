// A process that writes a database is killed, over and over: every put that it had reported is there afterwards, and no log is
// longer than its records. Arguments: a folder, and the number of rounds, which alternate between direct and buffered I/O.
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "../forebay_rocksdb.h"
#include "check.h"

namespace {

using namespace rocksdb;

std::string key_of(uint64_t n) { return "key" + std::to_string(n * 2654435761u % 1000003) + "." + std::to_string(n); }

std::string value_of(uint64_t n) { return bytes_of(n * 31, 50 + n % 3000); }

/// Opens the database, and leaves what belongs to it to the end of the process.
DB *open_database(const std::string &path, bool is_direct) {
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
    // A log whose last record is cut short has lost nothing that was reported; more than that is damage.
    options.wal_recovery_mode =
        is_direct ? WALRecoveryMode::kPointInTimeRecovery : WALRecoveryMode::kTolerateCorruptedTailRecords;
    options.paranoid_checks = true;
    DB *db = nullptr;
    OK(DB::Open(options, path, &db));
    return db;
}

[[noreturn]] void write_until_killed(const std::string &path, bool is_direct, uint64_t from, int reports) {
    DB *db = open_database(path, is_direct);
    for (uint64_t n = from;; n++) {
        WriteOptions write;
        write.sync = n % 16 == 0;
        OK(db->Put(write, key_of(n), value_of(n)));
        CHECK(::write(reports, &n, sizeof n) == sizeof n);
    }
}

void verify(const std::string &path, bool is_direct, uint64_t count) {
    DB *db = open_database(path, is_direct);
    std::string found;
    for (uint64_t n = 0; n < count; n++) {
        OK(db->Get(ReadOptions(), key_of(n), &found));
        CHECK(found == value_of(n));
    }
    OK(db->VerifyChecksum());
    OK(db->Close());
}

}  // namespace

int main(int count, char **arguments) {
    CHECK(count == 3);
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
            verify(path, is_direct, known);
            std::exit(0);
        }
        CHECK(waitpid(verifier, &status, 0) == verifier && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    std::printf("%llu and %llu puts, none lost\nok\n", static_cast<unsigned long long>(reported[0]),
                static_cast<unsigned long long>(reported[1]));
    return 0;
}
