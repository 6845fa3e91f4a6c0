/* Invites: the known text of a known invite (made by a few lines of Python from the format's description), every
 * mistake refused with its own sentence, and the limits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "crypto/base32.h"
#include "crypto/hash.h"
#include "crypto/invite.h"
#include "runtime/base/rng.h"

static const char known[] =
    "shoal105d000820c20a1g7104gm2rc1m70y40h289h858p2wc1j6gv3gehw7s0m2gt58x4mpkafg61rb1w9he6rz4ckjp"
    "bsk6wxkr214rkjche60q34bhq2gf0pchg60rkms3270x3mcfzzzpkbxke";

static struct invite sample(void)
{
    struct invite inv = {.n_addrs = 2};

    for (size_t i = 0; i < KEY_BYTES; i++)
        inv.coordinator.bytes[i] = (uint8_t)(i + 1);
    for (size_t i = 0; i < INVITE_JOB_ID_BYTES; i++)
        inv.job_id[i] = (uint8_t)(0xa0 + i);
    for (size_t i = 0; i < INVITE_CAPABILITY_BYTES; i++)
        inv.capability[i] = (uint8_t)(0xc0 + i);
    snprintf(inv.addrs[0].host, sizeof(inv.addrs[0].host), "192.0.2.7");
    inv.addrs[0].port = 7700;
    snprintf(inv.addrs[1].host, sizeof(inv.addrs[1].host), "2001:db8::1");
    inv.addrs[1].port = 65535;
    return inv;
}

/* Refused with that status and a sentence that has those words, the result untouched. */
static void expect_refused(const char *text, int status, const char *words)
{
    struct reason why = {0};
    struct invite inv, before;

    memset(&inv, 0x5a, sizeof(inv));
    before = inv;
    assert_int_equal(invite_decode(text, &inv, &why), status);
    if (strstr(why.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", why.text, words);
    assert_memory_equal(&inv, &before, sizeof(inv));
}

static void expect_sample(const char *text)
{
    const struct invite want = sample();
    struct reason why = {0};
    struct invite got;

    memset(&got, 0x5a, sizeof(got));
    assert_int_equal(invite_decode(text, &got, &why), 0);
    assert_memory_equal(&got, &want, sizeof(got));
    assert_string_equal(why.text, "");
}

static void the_known_invite_has_the_known_text(void **state)
{
    const struct invite inv = sample();
    char text[INVITE_TEXT_MAX + 1];

    (void)state;
    assert_int_equal(invite_encode(&inv, text), 0);
    assert_string_equal(text, known);
    expect_sample(known);
}

static void blanks_line_breaks_and_upper_case_are_forgiven(void **state)
{
    char text[8 * sizeof(known)];
    size_t n = 0;

    (void)state;
    n += (size_t)snprintf(text, sizeof(text), " \t\r\n");
    for (size_t i = 0; i < strlen(known); i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%c%s", toupper(known[i]), i % 40 == 39 ? "\r\n   " : " ");
    expect_sample(text);
}

static void the_longest_invite_survives_the_round_trip(void **state)
{
    char text[INVITE_TEXT_MAX + 1];
    struct invite inv = sample(), back;

    (void)state;
    inv.n_addrs = ADDRS_MAX;
    for (size_t i = 0; i < ADDRS_MAX; i++) {
        memset(inv.addrs[i].host, (int)('a' + i), HOST_MAX_LEN);
        inv.addrs[i].host[HOST_MAX_LEN] = '\0';
        inv.addrs[i].port = (uint16_t)(i + 1);
    }
    assert_int_equal(invite_encode(&inv, text), 0);
    assert_int_equal(invite_decode(text, &back, NULL), 0);
    assert_memory_equal(&back, &inv, sizeof(inv));
}

static void an_invite_that_breaks_the_limits_is_not_written(void **state)
{
    static const char *const bad_hosts[] = {"", "a b", "a\n", "a\x7f", "caf\xc3\xa9"};
    char text[INVITE_TEXT_MAX + 1] = "untouched";
    struct invite inv = sample();

    (void)state;
    inv.n_addrs = 0;
    assert_int_equal(invite_encode(&inv, text), -E_INVAL);
    inv.n_addrs = ADDRS_MAX + 1;
    assert_int_equal(invite_encode(&inv, text), -E_INVAL);
    inv.n_addrs = UINT32_MAX;
    assert_int_equal(invite_encode(&inv, text), -E_INVAL);
    inv = sample();
    inv.addrs[1].port = 0;
    assert_int_equal(invite_encode(&inv, text), -E_INVAL);
    inv = sample();
    memset(inv.addrs[1].host, 'a', sizeof(inv.addrs[1].host)); /* no end */
    assert_int_equal(invite_encode(&inv, text), -E_INVAL);
    for (size_t i = 0; i < sizeof(bad_hosts) / sizeof(bad_hosts[0]); i++) {
        inv = sample();
        snprintf(inv.addrs[1].host, sizeof(inv.addrs[1].host), "%s", bad_hosts[i]);
        assert_int_equal(invite_encode(&inv, text), -E_INVAL);
    }
    assert_string_equal(text, "untouched");
}

static void every_mistyped_character_is_refused(void **state)
{
    char text[sizeof(known)];

    (void)state;
    memcpy(text, known, sizeof(known));
    for (size_t i = 0; i < strlen(known); i++) {
        for (int c = 1; c < 256; c++) {
            struct invite inv;
            struct reason why = {0};

            if (tolower(c) == known[i])
                continue;
            text[i] = (char)c;
            assert_true(invite_decode(text, &inv, &why) < 0);
            assert_string_not_equal(why.text, "");
        }
        text[i] = known[i];
    }
    expect_sample(text);
}

static void neighbours_that_changed_places_are_refused(void **state)
{
    char text[sizeof(known)];

    (void)state;
    for (size_t i = 0; i + 1 < strlen(known); i++) {
        struct invite inv;

        memcpy(text, known, sizeof(known));
        text[i] = known[i + 1];
        text[i + 1] = known[i];
        if (text[i] != text[i + 1])
            assert_true(invite_decode(text, &inv, NULL) < 0);
    }
}

static void every_cut_is_refused_as_one(void **state)
{
    char text[sizeof(known)];

    (void)state;
    for (size_t n = 1; n < strlen(known); n++) {
        memcpy(text, known, n);
        text[n] = '\0';
        expect_refused(text, -E_INVAL, "cut short");
    }
}

static void each_mistake_has_its_sentence(void **state)
{
    char text[2 * INVITE_TEXT_MAX];

    (void)state;
    expect_refused("", -E_INVAL, "empty");
    expect_refused(" \n ", -E_INVAL, "empty");
    expect_refused("https://example.org/", -E_INVAL, "no invite");
    expect_refused("shoalx0000", -E_INVAL, "no invite");
    expect_refused("shoal205d00", -E_VERSION, "newer Shoal");
    snprintf(text, sizeof(text), "%s%s", known, "000");
    expect_refused(text, -E_INVAL, "too many");
    snprintf(text, sizeof(text), "%s", known);
    text[50] = 'o';
    expect_refused(text, -E_INVAL, "character 51 is 'o' (the digit 0?)");
    text[50] = 'L';
    expect_refused(text, -E_INVAL, "character 51 is 'l' (the digit 1?)");
    text[50] = '!';
    expect_refused(text, -E_INVAL, "character 51 is '!'");
    text[50] = '\xc3';
    expect_refused(text, -E_INVAL, "no letter and no digit");
    text[50] = known[50] == 'z' ? 'y' : 'z';
    expect_refused(text, -E_INVAL, "checksum");
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    expect_refused(text, -E_INVAL, "longer than any invite");
}

/* The text of a payload of n bytes, whose length and checksum are put right. */
static const char *text_of(uint8_t *payload, size_t n)
{
    static char text[INVITE_TEXT_MAX + 1];
    uint8_t hash[HASH_BYTES];

    payload[1] = (uint8_t)n;
    payload[2] = (uint8_t)(n >> 8);
    hash_of(payload, n - 4, hash);
    memcpy(payload + n - 4, hash, 4);
    strcpy(text, "shoal1");
    base32_encode(payload, n, text + 6);
    return text;
}

enum { COUNT_AT = 3 + 32 + 8 + 16, HOST_AT = COUNT_AT + 1, SAMPLE_BYTES = HOST_AT + 12 + 14 + 4 };

static void sample_payload(uint8_t ret[INVITE_TEXT_MAX])
{
    assert_int_equal(BASE32_LEN(SAMPLE_BYTES), strlen(known) - 6);
    assert_int_equal(base32_decode(known + 6, strlen(known) - 6, ret), 0);
}

static void sealed_nonsense_is_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {
        {COUNT_AT, 0},      {COUNT_AT, 1},       {COUNT_AT, 3},       {COUNT_AT, ADDRS_MAX + 1},
        {COUNT_AT, 255},    {HOST_AT, 0},        {HOST_AT, 8},        {HOST_AT, 10},
        {HOST_AT, 255},     {HOST_AT + 1, '\n'}, {HOST_AT + 1, 0},    {HOST_AT + 1, 0xc3},
        {HOST_AT + 12, 10}, {HOST_AT + 12, 12},  {HOST_AT + 12, 255},
    };
    uint8_t payload[INVITE_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        sample_payload(payload);
        payload[changes[i].at] = changes[i].value;
        expect_refused(text_of(payload, SAMPLE_BYTES), -E_INVAL, "made wrongly");
    }
    sample_payload(payload);
    payload[HOST_AT + 10] = payload[HOST_AT + 11] = 0; /* the first port */
    expect_refused(text_of(payload, SAMPLE_BYTES), -E_INVAL, "made wrongly");
    for (size_t n = 7; n < SAMPLE_BYTES; n++) {
        sample_payload(payload);
        expect_refused(text_of(payload, n), -E_INVAL, "made wrongly");
    }
    sample_payload(payload);
    expect_refused(text_of(payload, SAMPLE_BYTES + 1), -E_INVAL, "made wrongly");
    sample_payload(payload);
    expect_sample(text_of(payload, SAMPLE_BYTES));
}

static void a_sealed_invite_of_another_version_names_both(void **state)
{
    uint8_t payload[INVITE_TEXT_MAX];

    (void)state;
    sample_payload(payload);
    payload[0] = 2;
    expect_refused(text_of(payload, SAMPLE_BYTES), -E_VERSION, "version 2, this program knows 1");
    sample_payload(payload);
    payload[0] = 77;
    expect_refused(text_of(payload, 7), -E_VERSION, "version 77");
}

static void random_input_is_survived(void **state)
{
    struct rng r = rng_make(7, "invite");
    char text[512];

    (void)state;
    for (int round = 0; round < 20000; round++) {
        const size_t n = 6 + rng_below(&r, sizeof(text) - 7);
        struct invite inv;

        for (size_t i = 0; i < n; i++)
            text[i] = round % 2 == 0 ? (char)(1 + rng_below(&r, 255)) : known[6 + rng_below(&r, strlen(known) - 6)];
        text[n] = '\0';
        if (round % 4 != 0)
            memcpy(text, "shoal1", 6);
        assert_true(invite_decode(text, &inv, NULL) < 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_known_invite_has_the_known_text),
        cmocka_unit_test(blanks_line_breaks_and_upper_case_are_forgiven),
        cmocka_unit_test(the_longest_invite_survives_the_round_trip),
        cmocka_unit_test(an_invite_that_breaks_the_limits_is_not_written),
        cmocka_unit_test(every_mistyped_character_is_refused),
        cmocka_unit_test(neighbours_that_changed_places_are_refused),
        cmocka_unit_test(every_cut_is_refused_as_one),
        cmocka_unit_test(each_mistake_has_its_sentence),
        cmocka_unit_test(sealed_nonsense_is_refused),
        cmocka_unit_test(a_sealed_invite_of_another_version_names_both),
        cmocka_unit_test(random_input_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
