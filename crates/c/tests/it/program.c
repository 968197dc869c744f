// Uses all functions of forebay.h, and fails with the line of the first wrong answer.

#include "forebay.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__,          \
                    #condition, forebay_error_message());                                        \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

#define BYTES(text) (const uint8_t *)(text), strlen(text)

static int is(const forebay_value *value, const char *text) {
    return value->len == strlen(text) && memcmp(value->data, text, value->len) == 0;
}

static atomic_int loads;

// Makes "made of KEY", or fails with the number that `user` points to.
static int load(void *user, const uint8_t *key, size_t key_len, forebay_buffer *buffer) {
    atomic_fetch_add(&loads, 1);
    if (user != NULL && *(int *)user != 0) {
        return *(int *)user;
    }
    uint8_t *data = forebay_buffer_resize(buffer, 8);
    CHECK(data != NULL);
    memcpy(data, "made of ", 8);
    data = forebay_buffer_resize(buffer, 8 + key_len);
    CHECK(data != NULL && memcmp(data, "made of ", 8) == 0);
    memcpy(data + 8, key, key_len);
    return 0;
}

// Requests the key that it loads.
static int load_itself(void *user, const uint8_t *key, size_t key_len, forebay_buffer *buffer) {
    forebay_value value;
    (void)buffer;
    forebay_status status =
        forebay_cache_get_or_load(user, key, key_len, load_itself, user, &value);
    CHECK(value.data == NULL && value.pin == NULL);
    return status;
}

static forebay_cache *open_cache(uint64_t capacity_bytes, uint64_t max_entries) {
    forebay_cache_config config = {.capacity_bytes = capacity_bytes, .max_entries = max_entries};
    forebay_cache *cache = NULL;
    CHECK(forebay_cache_open(&config, &cache) == FOREBAY_STATUS_OK);
    return cache;
}

static void test_memory(void) {
    forebay_cache *cache = open_cache(1 << 20, 0);
    forebay_value value, older;
    CHECK(forebay_cache_get(cache, BYTES("one"), &value) == FOREBAY_STATUS_NOT_FOUND);
    CHECK(value.data == NULL);
    CHECK(forebay_cache_insert(cache, BYTES("one"), BYTES("first"), 0) == FOREBAY_STATUS_OK);
    CHECK(forebay_cache_get(cache, BYTES("one"), &older) == FOREBAY_STATUS_OK && is(&older, "first"));
    CHECK(forebay_cache_insert(cache, BYTES("one"), BYTES("second"), 0) == FOREBAY_STATUS_OK);
    CHECK(forebay_cache_get(cache, BYTES("one"), &value) == FOREBAY_STATUS_OK);
    CHECK(is(&value, "second") && is(&older, "first"));
    forebay_value_release(&value);
    forebay_value_release(&value);
    forebay_value_release(NULL);
    CHECK(forebay_cache_remove(cache, BYTES("one")) == FOREBAY_STATUS_OK);
    CHECK(forebay_cache_remove(cache, BYTES("one")) == FOREBAY_STATUS_NOT_FOUND);

    // The empty key and the empty value are a key and a value.
    CHECK(forebay_cache_insert(cache, NULL, 0, NULL, 0, 0) == FOREBAY_STATUS_OK);
    CHECK(forebay_cache_get(cache, NULL, 0, &value) == FOREBAY_STATUS_OK);
    CHECK(value.data != NULL && value.len == 0);
    forebay_value_release(&value);

    // A key may contain zeros, and is compared up to its end.
    CHECK(forebay_cache_insert(cache, (const uint8_t *)"a\0b", 3, BYTES("zero"), 0) == 0);
    CHECK(forebay_cache_get(cache, (const uint8_t *)"a\0c", 3, &value) == FOREBAY_STATUS_NOT_FOUND);

    forebay_cache_counts counts;
    CHECK(forebay_cache_stats(cache, &counts) == FOREBAY_STATUS_OK);
    CHECK(counts.entries == 2 && counts.capacity == 1 << 20 && counts.weight >= 2 * 128 + 7);
    CHECK(counts.hits == 3 && counts.misses == 2 && counts.inserts == 4);
    CHECK(forebay_cache_clear(cache) == FOREBAY_STATUS_OK);
    CHECK(forebay_cache_stats(cache, &counts) == FOREBAY_STATUS_OK && counts.entries == 0);

    // The pinned value outlives the cache.
    CHECK(forebay_cache_close(cache) == FOREBAY_STATUS_OK);
    CHECK(is(&older, "first"));
    forebay_value_release(&older);
}

static void test_limits(void) {
    forebay_cache *cache = open_cache(0, 100);
    for (uint32_t i = 0; i < 10000; i++) {
        CHECK(forebay_cache_insert(cache, (uint8_t *)&i, sizeof i, BYTES("x"), 0) == 0);
    }
    forebay_cache_counts counts;
    CHECK(forebay_cache_stats(cache, &counts) == FOREBAY_STATUS_OK);
    CHECK(counts.entries <= 200 && counts.evictions >= 9800);
    CHECK(forebay_cache_close(cache) == FOREBAY_STATUS_OK);

    cache = open_cache(1 << 16, 0);
    uint8_t *large = calloc(1, 1 << 17);
    CHECK(forebay_cache_insert(cache, BYTES("large"), large, 1 << 17, 0) == FOREBAY_STATUS_REFUSED);
    CHECK(strstr(forebay_error_message(), "raise the capacity") != NULL);
    free(large);
    CHECK(forebay_cache_close(cache) == FOREBAY_STATUS_OK);
}

static void test_expiry(void) {
    // It is over when the clock has moved, however slow the machine is.
    forebay_cache *cache = open_cache(1 << 20, 0);
    forebay_value value;
    CHECK(forebay_cache_insert(cache, BYTES("short"), BYTES("x"), 1) == FOREBAY_STATUS_OK);
    CHECK(forebay_cache_insert(cache, BYTES("long"), BYTES("x"), 3600 * 1000) == 0);
    CHECK(forebay_cache_insert(cache, BYTES("endless"), BYTES("x"), 0) == FOREBAY_STATUS_OK);
    while (forebay_cache_get(cache, BYTES("short"), &value) == FOREBAY_STATUS_OK) {
        forebay_value_release(&value);
    }
    CHECK(forebay_cache_get(cache, BYTES("long"), &value) == FOREBAY_STATUS_OK);
    forebay_value_release(&value);
    CHECK(forebay_cache_get(cache, BYTES("endless"), &value) == FOREBAY_STATUS_OK);
    forebay_value_release(&value);
    forebay_cache_counts counts;
    CHECK(forebay_cache_stats(cache, &counts) == FOREBAY_STATUS_OK && counts.expirations == 1);
    CHECK(forebay_cache_close(cache) == FOREBAY_STATUS_OK);
}

static void test_loads(void) {
    forebay_cache *cache = open_cache(1 << 20, 0);
    forebay_value value;
    atomic_store(&loads, 0);
    for (int i = 0; i < 2; i++) {
        CHECK(forebay_cache_get_or_load(cache, BYTES("a"), load, NULL, &value) == 0);
        CHECK(is(&value, "made of a"));
        forebay_value_release(&value);
    }
    CHECK(atomic_load(&loads) == 1);
    int code = 42;
    CHECK(forebay_cache_get_or_load(cache, BYTES("b"), load, &code, &value) ==
          FOREBAY_STATUS_LOADER_FAILED);
    CHECK(value.data == NULL && forebay_loader_code() == 42);
    CHECK(strstr(forebay_error_message(), "the loader returned 42") != NULL);
    CHECK(forebay_cache_get_or_load(cache, BYTES("c"), load_itself, cache, &value) ==
          FOREBAY_STATUS_LOADER_FAILED);
    CHECK(forebay_loader_code() == FOREBAY_STATUS_RECURSIVE);
    CHECK(forebay_cache_get_or_load(cache, BYTES("d"), NULL, NULL, &value) ==
          FOREBAY_STATUS_INVALID);
    CHECK(forebay_loader_code() == 0);
    CHECK(forebay_buffer_resize(NULL, 1) == NULL);
    CHECK(forebay_cache_close(cache) == FOREBAY_STATUS_OK);
}

static void *request(void *cache) {
    for (uint32_t i = 0; i < 1000; i++) {
        forebay_value value;
        uint32_t key = i % 100;
        CHECK(forebay_cache_get_or_load(cache, (uint8_t *)&key, sizeof key, load, NULL, &value) == 0);
        CHECK(value.len == 12 && memcmp(value.data + 8, &key, sizeof key) == 0);
        forebay_value_release(&value);
    }
    return NULL;
}

static void test_threads(void) {
    forebay_cache *cache = open_cache(1 << 20, 0);
    pthread_t threads[4];
    atomic_store(&loads, 0);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, request, cache) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    // One load of each key, however many threads ask.
    CHECK(atomic_load(&loads) == 100);
    CHECK(forebay_cache_close(cache) == FOREBAY_STATUS_OK);
}

static void test_hybrid(const char *path) {
    forebay_hybrid_config config = {path, 16 << 20, 1 << 20};
    forebay_hybrid *cache = NULL, *second = NULL;
    forebay_value value;
    CHECK(forebay_hybrid_open(&config, &cache) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_open(&config, &second) != FOREBAY_STATUS_OK && second == NULL);
    CHECK(strlen(forebay_error_message()) > 0);

    CHECK(forebay_hybrid_get(cache, BYTES("one"), &value) == FOREBAY_STATUS_NOT_FOUND);
    CHECK(forebay_hybrid_insert(cache, BYTES("one"), BYTES("first")) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_insert(cache, BYTES("two"), BYTES("second")) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_get(cache, BYTES("one"), &value) == 0 && is(&value, "first"));
    forebay_value_release(&value);
    CHECK(forebay_hybrid_remove(cache, BYTES("two")) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_get_or_load(cache, BYTES("a"), load, NULL, &value) == 0);
    CHECK(is(&value, "made of a"));
    forebay_value_release(&value);
    int code = 7;
    CHECK(forebay_hybrid_get_or_load(cache, BYTES("b"), load, &code, &value) ==
          FOREBAY_STATUS_LOADER_FAILED);
    CHECK(forebay_loader_code() == 7);
    CHECK(forebay_hybrid_wait_ready(cache) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_flush(cache) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_close(cache) == FOREBAY_STATUS_OK);

    // After a restart, the file has the values, and does not have what was removed.
    CHECK(forebay_hybrid_open(&config, &cache) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_wait_ready(cache) == FOREBAY_STATUS_OK);
    CHECK(forebay_hybrid_get(cache, BYTES("one"), &value) == 0 && is(&value, "first"));
    forebay_value_release(&value);
    CHECK(forebay_hybrid_get(cache, BYTES("a"), &value) == 0 && is(&value, "made of a"));
    forebay_value_release(&value);
    CHECK(forebay_hybrid_get(cache, BYTES("two"), &value) == FOREBAY_STATUS_NOT_FOUND);
    forebay_hybrid_counts counts;
    CHECK(forebay_hybrid_stats(cache, &counts) == FOREBAY_STATUS_OK);
    CHECK(counts.device_is_ready && counts.device_entries >= 2 && counts.device_used_bytes > 0);
    CHECK(forebay_hybrid_close(cache) == FOREBAY_STATUS_OK);

    config.bytes = 1;
    CHECK(forebay_hybrid_open(&config, &cache) == FOREBAY_STATUS_INVALID && cache == NULL);
    config.path = "/no/such/folder/cache";
    config.bytes = 16 << 20;
    CHECK(forebay_hybrid_open(&config, &cache) == FOREBAY_STATUS_INVALID);
    CHECK(strstr(forebay_error_message(), "there is no folder") != NULL);
}

static void test_null_pointers(void) {
    forebay_cache *cache = NULL;
    forebay_hybrid *hybrid = NULL;
    forebay_value value;
    CHECK(forebay_cache_open(NULL, &cache) == FOREBAY_STATUS_INVALID && cache == NULL);
    forebay_cache_config neither = {0}, both = {.capacity_bytes = 1, .max_entries = 1};
    CHECK(forebay_cache_open(&neither, &cache) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_cache_open(&both, &cache) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_cache_open(&both, NULL) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_cache_get(NULL, BYTES("a"), &value) == FOREBAY_STATUS_INVALID);
    CHECK(value.data == NULL && strstr(forebay_error_message(), "`cache` is a null pointer"));
    CHECK(forebay_cache_insert(NULL, NULL, 1, NULL, 0, 0) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_cache_close(NULL) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_hybrid_open(NULL, &hybrid) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_hybrid_close(NULL) == FOREBAY_STATUS_INVALID);
    CHECK(forebay_hybrid_flush(NULL) == FOREBAY_STATUS_INVALID);
}

int main(int count, char **arguments) {
    // A close that waits for a value that nobody releases ends the test.
    alarm(300);
    CHECK(count == 2);
    CHECK(strchr(forebay_version(), '.') != NULL);
    CHECK(strlen(forebay_error_message()) == 0);
    test_memory();
    test_limits();
    test_expiry();
    test_loads();
    test_threads();
    test_hybrid(arguments[1]);
    test_null_pointers();
    return 0;
}
