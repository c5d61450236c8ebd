// A database by RocksDB's functions for C, as the crate `rocksdb` calls them. Argument: a folder.
#include <rocksdb/c.h>

#include "../forebay_rocksdb.h"
#include "check.h"

int main(int, char **arguments) {
    const std::string path = std::string(arguments[1]) + "/c-env";
    char *error = nullptr;
    fb_config config = {};
    config.size = sizeof config;
    config.shards = 65;
    CHECK(forebay_rocksdb_env(&config, &error) == nullptr && error != nullptr);
    rocksdb_free(error);
    error = nullptr;
    rocksdb_env_t *env = forebay_rocksdb_env(nullptr, &error);
    CHECK(env != nullptr && error == nullptr);
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_use_direct_reads(options, 1);
    rocksdb_options_set_env(options, env);
    rocksdb_readoptions_t *read = rocksdb_readoptions_create();
    rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
    for (char life = 0; life < 3; life++) {
        rocksdb_t *db = rocksdb_open(options, path.c_str(), &error);
        CHECK(db != nullptr && error == nullptr);
        size_t len = 0;
        char *value = rocksdb_get(db, read, "life", 4, &len, &error);
        CHECK(error == nullptr && (life == 0 ? value == nullptr : len == 1 && value[0] == life - 1));
        rocksdb_free(value);
        rocksdb_put(db, write, "life", 4, &life, 1, &error);
        CHECK(error == nullptr);
        rocksdb_close(db);
    }
    rocksdb_writeoptions_destroy(write);
    rocksdb_readoptions_destroy(read);
    rocksdb_options_destroy(options);
    rocksdb_env_destroy(env);
    std::puts("ok");
    return 0;
}
