/* JSON reading: 64-bit values survive, and whatever is missing or wrong is named. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/base/jsonw.h"
#include "runtime/store/json.h"
#include "tests/unit/store/temp_dir.h"

static struct json *parsed(const char *text)
{
    struct json *j = NULL;

    assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
    return j;
}

static void u64_survives_as_a_string(void **state)
{
    const uint64_t values[] = {0, 1, UINT64_C(1) << 53, (UINT64_C(1) << 53) + 1, UINT64_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char number[32];
        struct jsonw w;
        struct json *j;
        uint64_t got;

        snprintf(number, sizeof(number), "%" PRIu64, values[i]);
        jsonw_init(&w);
        jsonw_object(&w, NULL);
        jsonw_str(&w, "x", number);
        jsonw_object_end(&w);
        j = parsed(jsonw_text(&w));
        assert_int_equal(json_get_u64(j, "x", &got, NULL), 0);
        assert_true(got == values[i]);
        json_free(j);
        jsonw_done(&w);
    }
}

static void u64_that_is_none_is_corrupt(void **state)
{
    const char *texts[] = {
        "{\"x\":-1}",   "{\"x\":1.5}",    "{\"x\":1e300}",  "{\"x\":9007199254740993}",
        "{\"x\":\"\"}", "{\"x\":\"-1\"}", "{\"x\":\"1 \"}", "{\"x\":\"18446744073709551616\"}",
        "{\"x\":null}", "{\"x\":[1]}",    "{\"y\":1}",      "[1]",
    };
    uint64_t got = 7;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct reason why = {0};
        struct json *j = parsed(texts[i]);

        if (i == 3) { /* 2^53 + 1 reads as 2^53: a double cannot tell, and that is why we write strings */
            assert_int_equal(json_get_u64(j, "x", &got, &why), 0);
            got = 7;
        } else {
            assert_int_equal(json_get_u64(j, "x", &got, &why), -E_CORRUPT);
            assert_non_null(strstr(why.text, "\"x\""));
        }
        assert_int_equal(got, 7);
        json_free(j);
    }
}

static void values_of_each_kind_are_read(void **state)
{
    struct json *j = parsed("{\"s\":\"t\\u00e9\",\"n\":-2.5,\"nan\":null,\"b\":true,\"h\":\"00fFa9\",\"a\":[1,2]}");
    const char *s;
    double n, nan;
    bool b;
    uint8_t h[3];
    size_t count = 0;

    (void)state;
    assert_int_equal(json_get_str(j, "s", &s, NULL), 0);
    assert_string_equal(s, "t\xc3\xa9");
    assert_int_equal(json_get_num(j, "n", &n, NULL), 0);
    assert_true(n == -2.5);
    assert_int_equal(json_get_num(j, "nan", &nan, NULL), 0);
    assert_true(isnan(nan));
    assert_int_equal(json_get_bool(j, "b", &b, NULL), 0);
    assert_true(b);
    assert_int_equal(json_get_hex(j, "h", h, 3, NULL), 0);
    assert_memory_equal(h, "\x00\xff\xa9", 3);
    for (const struct json *v = json_first(json_get(j, "a")); v != NULL; v = json_next(v)) {
        assert_null(json_key(v));
        count++;
    }
    assert_int_equal(count, 2);
    assert_int_equal(json_get_str(j, "n", &s, NULL), -E_CORRUPT);
    assert_int_equal(json_get_num(j, "s", &n, NULL), -E_CORRUPT);
    assert_int_equal(json_get_bool(j, "s", &b, NULL), -E_CORRUPT);
    assert_int_equal(json_get_hex(j, "h", h, 2, NULL), -E_CORRUPT);
    assert_int_equal(json_get_hex(j, "s", h, 1, NULL), -E_CORRUPT);
    assert_int_equal(json_get_str(j, "S", &s, NULL), -E_CORRUPT); /* keys are case-sensitive */
    json_free(j);
}

static void text_that_is_not_one_value_is_corrupt(void **state)
{
    const char *texts[] = {"", " ", "{", "{}{}", "{} x", "{\"a\":}", "[1,", "\"\\ud800\"", "nul"};
    struct json *j = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct reason why = {0};

        assert_int_equal(json_parse(texts[i], strlen(texts[i]), &j, &why), -E_CORRUPT);
        assert_true(why.text[0] != '\0');
    }
    assert_int_equal(json_parse("{}\0{}", 5, &j, NULL), -E_CORRUPT);
    assert_null(j);
}

static void deep_nesting_is_refused_not_followed(void **state)
{
    enum { DEPTH = 1 << 20 };
    char *text = mem_alloc(DEPTH);
    struct json *j = NULL;

    (void)state;
    memset(text, '[', DEPTH);
    assert_int_equal(json_parse(text, DEPTH, &j, NULL), -E_CORRUPT);
    mem_free(text);
}

static void load_names_the_file(void **state)
{
    cleanup_mem_ char *path = file_join(*state, "x.json");
    struct reason why = {0};
    struct json *j = NULL;

    assert_int_equal(json_load(path, 10, &j, NULL), -E_NOENT);
    assert_int_equal(file_write(path, "{\"a\":1", 6, 0600, NULL), 0);
    assert_int_equal(json_load(path, 10, &j, &why), -E_CORRUPT);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(file_write(path, "{\"a\":1}", 7, 0600, NULL), 0);
    assert_int_equal(json_load(path, 6, &j, NULL), -E_TOOBIG);
    assert_int_equal(json_load(path, 7, &j, NULL), 0);
    json_free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(u64_survives_as_a_string),
        cmocka_unit_test(u64_that_is_none_is_corrupt),
        cmocka_unit_test(values_of_each_kind_are_read),
        cmocka_unit_test(text_that_is_not_one_value_is_corrupt),
        cmocka_unit_test(deep_nesting_is_refused_not_followed),
        cmocka_unit_test_setup_teardown(load_names_the_file, temp_dir_make, temp_dir_remove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
