// A program with another version of RocksDB, in the place of which it says so itself: forebay:// is not registered there.
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/version.h>

#include "check.h"

std::string rocksdb::GetRocksVersionAsString(bool) { return "6.11.4"; }

int main() {
    rocksdb::Env *env = nullptr;
    std::shared_ptr<rocksdb::Env> guard;
    rocksdb::ConfigOptions config;
    config.ignore_unsupported_options = false;
    CHECK(!rocksdb::Env::CreateFromUri(config, "", "forebay://", &env, &guard).ok());
    return 0;
}
