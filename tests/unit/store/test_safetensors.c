/* safetensors: what is written reads back; each broken field is refused with a sentence. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "runtime/store/safetensors.h"
#include "tests/unit/store/temp_dir.h"

/* A file made of a header text and n_data bytes of data: the parser's answer. */
static int parse(const char *header, size_t n_data, struct safetensors **ret, struct reason *why)
{
    const size_t len = strlen(header), padded = (len + 7) / 8 * 8;
    uint8_t *bytes = mem_calloc(8 + padded + n_data, 1);
    struct safetensors *s = NULL;
    int r;

    assert_non_null(bytes);
    memset(bytes + 8, ' ', padded);
    memcpy(bytes + 8, header, len);
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(padded >> (8 * i));
    r = safetensors_parse(bytes, 8 + padded + n_data, &s, why);
    if (ret != NULL)
        *ret = s; /* only counts and names may be looked at: the bytes are gone */
    else
        safetensors_free(s);
    mem_free(bytes);
    return r;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}"

static void well_formed_headers_are_read(void **state)
{
    struct safetensors *s;

    (void)state;
    assert_int_equal(parse("{}", 0, NULL, NULL), 0);
    assert_int_equal(parse("{\"__metadata__\":{}}", 0, NULL, NULL), 0);
    assert_int_equal(parse("{" B "," A ",\"__metadata__\":{\"format\":\"pt\"}}", 12, &s, NULL), 0);
    assert_int_equal(safetensors_count(s), 2);
    assert_string_equal(safetensors_at(s, 0)->name, "a"); /* in the order of the data, not of the header */
    assert_string_equal(safetensors_at(s, 1)->name, "b");
    assert_ptr_equal(safetensors_find(s, "b"), safetensors_at(s, 1));
    assert_null(safetensors_find(s, "c"));
    assert_null(safetensors_find(s, "__metadata__"));
    assert_string_equal(safetensors_metadata(s, "format"), "pt");
    assert_null(safetensors_metadata(s, "other"));
    safetensors_free(s);
    /* Scalars and empty tensors. */
    assert_int_equal(parse("{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                           "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
                           "\"f\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                           8, NULL, NULL),
                     0);
}

static void each_broken_field_is_refused(void **state)
{
    const struct {
        const char *header;
        size_t n_data;
        int want;
        const char *says;
    } cases[] = {
        {"[]", 0, -E_CORRUPT, "object"},
        {"{", 0, -E_CORRUPT, "JSON"},
        {"{} {}", 0, -E_CORRUPT, "JSON"},
        {"{\"a\":1}", 0, -E_CORRUPT, "object"},
        {"{\"__metadata__\":1}", 0, -E_CORRUPT, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, -E_CORRUPT, "__metadata__"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, -E_CORRUPT, "twice"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "no dtype"},
        {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "no dtype"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -E_UNSUPPORTED, "F33"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{\"x\":2},\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,10]}}", 10, -E_CORRUPT, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, -E_CORRUPT,
         "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, -E_TOOBIG, "dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, -E_CORRUPT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8, -E_CORRUPT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, -E_CORRUPT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, -E_CORRUPT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, -E_CORRUPT, "do not lie"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, -E_CORRUPT, "do not lie"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]}}", 12, -E_CORRUPT, "dtype and shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, -E_UNSUPPORTED, "aligned"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, -E_CORRUPT, "overlap"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -E_CORRUPT, "overlap"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16, -E_CORRUPT, "no tensor"},
        {"{" A "," B "}", 13, -E_CORRUPT, "no tensor"},
        {"{" A ",\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, -E_CORRUPT, "twice"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reason why = {0};
        const int r = parse(cases[i].header, cases[i].n_data, NULL, &why);

        if (r != cases[i].want || strstr(why.text, cases[i].says) == NULL)
            fail_msg("%s\ngave %s: %s", cases[i].header, status_name(r), why.text);
    }
}

static void wrong_header_lengths_are_refused(void **state)
{
    _Alignas(8) uint8_t bytes[24] = "\x08\0\0\0\0\0\0\0{}      ";
    struct safetensors *s = NULL;

    (void)state;
    for (size_t n = 0; n < 16; n++) /* cut off anywhere */
        assert_int_equal(safetensors_parse(bytes, n, &s, NULL), -E_CORRUPT);
    assert_int_equal(safetensors_parse(bytes, 16, &s, NULL), 0);
    s = safetensors_free(s);
    bytes[0] = 7;
    assert_int_equal(safetensors_parse(bytes, 15, &s, NULL), -E_UNSUPPORTED);
    bytes[0] = 9;
    assert_int_equal(safetensors_parse(bytes, 16, &s, NULL), -E_CORRUPT);
    memset(bytes, 0xff, 8);
    assert_int_equal(safetensors_parse(bytes, 16, &s, NULL), -E_CORRUPT);
    assert_null(s);
}

static void limits_hold(void **state)
{
    const size_t n = 8 + SAFETENSORS_HEADER_MAX + 8;
    uint8_t *bytes = mem_alloc(n);
    struct safetensors *s = NULL;
    char name[SAFETENSORS_NAME_MAX_LEN + 2], header[512];

    (void)state;
    memset(bytes, ' ', n);
    memset(bytes, 0, 8);
    memcpy(bytes + 8, "{}", 2);
    bytes[3] = SAFETENSORS_HEADER_MAX >> 24;
    bytes[2] = (uint8_t)(SAFETENSORS_HEADER_MAX >> 16);
    assert_int_equal(safetensors_parse(bytes, n - 8, &s, NULL), 0);
    s = safetensors_free(s);
    bytes[0] = 8;
    assert_int_equal(safetensors_parse(bytes, n, &s, NULL), -E_TOOBIG);
    mem_free(bytes);

    memset(name, 'x', sizeof(name));
    for (int over = 0; over <= 1; over++) {
        snprintf(header, sizeof(header), "{\"%.*s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                 SAFETENSORS_NAME_MAX_LEN + over, name);
        assert_int_equal(parse(header, 0, NULL, NULL), over ? -E_TOOBIG : 0);
    }
}

static void tensor_count_is_bounded(void **state)
{
    const size_t cap = 80u * (TENSORS_MAX + 1u);
    char *header = mem_alloc(cap);

    (void)state;
    for (unsigned over = 0; over <= 2; over += 2) { /* one more entry might be __metadata__, two are too many */
        size_t len = 0;

        for (unsigned i = 0; i < TENSORS_MAX + over; i++)
            len += (size_t)sprintf(header + len, "%c\"%u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                   i == 0 ? '{' : ',', i);
        strcpy(header + len, "}");
        assert_int_equal(parse(header, 0, NULL, NULL), over ? -E_TOOBIG : 0);
    }
    mem_free(header);
}

static const float values_a[6] = {1, 2, 3, -4, 5.5f, 0};
static const uint8_t values_b[5] = {1, 2, 3, 4, 5};
static const struct safetensors_tensor specs[2] = {
    {.name = "z \"quoted\"", .dtype = SAFETENSORS_F32, .n_dims = 2, .dims = {2, 3}, .size = sizeof(values_a)},
    {.name = "b", .dtype = SAFETENSORS_U8, .n_dims = 1, .dims = {5}, .size = sizeof(values_b)},
};
static const char *const metadata[] = {"format", "pt", NULL};

static int write_file(const char *path)
{
    struct safetensors_writer *w = NULL;
    int r = safetensors_writer_new(path, specs, 2, metadata, &w, NULL);

    if (r == 0)
        r = safetensors_writer_put(w, values_a, 4, NULL);
    if (r == 0)
        r = safetensors_writer_put(w, values_a + 1, sizeof(values_a) - 4, NULL);
    if (r == 0)
        r = safetensors_writer_put(w, values_b, sizeof(values_b), NULL);
    if (r == 0)
        r = safetensors_writer_finish(w, NULL);
    safetensors_writer_free(w);
    return r;
}

static void written_files_read_back(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "t.safetensors");
    struct safetensors *s;
    const struct safetensors_tensor *t;

    assert_int_equal(write_file(path), 0);
    assert_int_equal(write_file(path), 0); /* over the old one */
    assert_int_equal(safetensors_open(path, &s, NULL), 0);
    assert_int_equal(safetensors_count(s), 2);
    assert_string_equal(safetensors_metadata(s, "format"), "pt");
    for (size_t i = 0; i < 2; i++) {
        t = safetensors_at(s, i);
        assert_string_equal(t->name, specs[i].name);
        assert_int_equal(t->dtype, specs[i].dtype);
        assert_int_equal(t->n_dims, specs[i].n_dims);
        assert_memory_equal(t->dims, specs[i].dims, sizeof(t->dims));
        assert_int_equal(t->size, specs[i].size);
    }
    assert_memory_equal(safetensors_at(s, 0)->data, values_a, sizeof(values_a));
    assert_memory_equal(safetensors_at(s, 1)->data, values_b, sizeof(values_b));
    safetensors_free(s);
}

static void unfinished_file_is_removed(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "t.safetensors"), *no_dir = file_join(*state, "none/t");
    struct safetensors_writer *w = NULL;
    struct reason why = {0};

    assert_int_equal(safetensors_writer_new(path, specs, 2, NULL, &w, NULL), 0);
    assert_int_equal(safetensors_writer_put(w, values_a, 8, NULL), 0);
    assert_true(file_exists(path));
    assert_null(safetensors_writer_free(w));
    assert_false(file_exists(path));
    assert_int_equal(safetensors_writer_new(no_dir, specs, 2, NULL, &w, &why), -E_NOENT);
    assert_non_null(strstr(why.text, no_dir));
}

static void cut_file_is_corrupt_at_every_length(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "t.safetensors"), *bytes = NULL;
    struct safetensors *s = NULL;
    size_t n;

    assert_int_equal(write_file(path), 0);
    assert_int_equal(file_read(path, 4096, &bytes, &n, NULL), 0);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(file_write(path, bytes, cut, 0600, NULL), 0);
        assert_int_equal(safetensors_open(path, &s, NULL), -E_CORRUPT);
    }
    assert_null(s);
}

static void each_failing_allocation_is_told_and_leaks_nothing(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "t.safetensors");
    struct safetensors *s = NULL;
    int r;

    for (int64_t i = 0;; i++) {
        mem_fault_set(i);
        r = write_file(path);
        if (!mem_fault_hit())
            break;
        assert_int_equal(r, -E_NOMEM);
        assert_false(file_exists(path));
    }
    assert_int_equal(r, 0);
    for (int64_t i = 0;; i++) {
        mem_fault_set(i);
        r = safetensors_open(path, &s, NULL);
        if (!mem_fault_hit())
            break;
        assert_int_equal(r, -E_NOMEM);
        assert_null(s);
    }
    mem_fault_set(-1);
    assert_int_equal(r, 0);
    safetensors_free(s);
}

#define in_folder(f) cmocka_unit_test_setup_teardown(f, temp_dir_make, temp_dir_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(well_formed_headers_are_read),
        cmocka_unit_test(each_broken_field_is_refused),
        cmocka_unit_test(wrong_header_lengths_are_refused),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(tensor_count_is_bounded),
        in_folder(written_files_read_back),
        in_folder(unfinished_file_is_removed),
        in_folder(cut_file_is_corrupt_at_every_length),
        in_folder(each_failing_allocation_is_told_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
