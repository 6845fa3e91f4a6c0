/* One table parses and describes: values land in their fields, mistakes are named, help lists everything. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "cli/option.h"

struct args {
    bool flag;
    const char *text;
    uint64_t count, size;
    double number;
    struct option_list list;
};

static const struct option options[] = {
    {"resume", NULL, OPTION_FLAG, offsetof(struct args, flag), .help = "go on"},
    {"run", "DIR", OPTION_TEXT, offsetof(struct args, text), .unset = "runs/NAME", .help = "the folder"},
    {"peers", "N", OPTION_COUNT, offsetof(struct args, count), .min = 1, .max = 8, .help = "how many"},
    {"memory", "SIZE", OPTION_SIZE, offsetof(struct args, size), .help = "how much"},
    {"speed", "F", OPTION_NUMBER, offsetof(struct args, number), .fallback = "0.5", .min = 0.01, .max = 1,
     .help = "how fast"},
    {"advertise", "ADDR", OPTION_LIST, offsetof(struct args, list), .help = "where"},
};
static const struct option_table table = {"Options", options, 6};

#define PARSE(...) parse((const char *[]){__VA_ARGS__, NULL})

static struct args a;
static const char *words[2];
static size_t n_words;
static struct reason why;

static int parse(const char **argv)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    memset(&a, 0x55, sizeof(a));
    why.text[0] = '\0';
    return option_parse(&table, 1, argc, (char **)argv, &a, words, 2, &n_words, &why);
}

static void fields_have_their_fallbacks(void **state)
{
    (void)state;
    assert_int_equal(PARSE("job.yaml"), 0);
    assert_false(a.flag);
    assert_null(a.text);
    assert_true(a.count == OPTION_UNSET && a.size == OPTION_UNSET);
    assert_true(a.number == 0.5);
    assert_int_equal(a.list.n, 0);
    assert_int_equal(n_words, 1);
    assert_string_equal(words[0], "job.yaml");
}

static void both_forms_and_any_order(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--peers", "3", "job.yaml", "--run=x=y", "--resume", "--memory=2G", "--speed", "1",
                           "--advertise", "a", "--advertise=b"),
                     0);
    assert_true(a.flag && a.count == 3 && a.size == UINT64_C(2) << 30 && a.number == 1);
    assert_string_equal(a.text, "x=y");
    assert_int_equal(a.list.n, 2);
    assert_string_equal(a.list.items[1], "b");
    assert_int_equal(n_words, 1);
}

static void words_behind_two_dashes_and_a_dash_alone(void **state)
{
    (void)state;
    assert_int_equal(PARSE("-", "--", "--peers"), 0);
    assert_int_equal(n_words, 2);
    assert_string_equal(words[0], "-");
    assert_string_equal(words[1], "--peers");
    assert_true(a.count == OPTION_UNSET);
}

static void expect(int r, const char *part)
{
    assert_int_equal(r, -E_INVAL);
    if (strstr(why.text, part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", why.text, part);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    expect(PARSE("--peer", "3"), "unknown option --peer; did you mean --peers?");
    expect(PARSE("--perse=3"), "did you mean --peers?");
    expect(PARSE("--mem", "3"), "did you mean --memory?");
    expect(PARSE("--quantum"), "unknown option --quantum");
    assert_null(strstr(why.text, "did you mean"));
    expect(PARSE("-p"), "unknown option -p");
    expect(PARSE("--peers"), "--peers needs a value: --peers N");
    expect(PARSE("--resume=yes"), "--resume takes no value");
    expect(PARSE("--peers", "many"), "--peers: \"many\" is not a whole number");
    expect(PARSE("--peers", "0"), "must lie between 1 and 8");
    expect(PARSE("--speed", "1.5"), "must lie between 0.01 and 1");
    expect(PARSE("--memory", "lots"), "--memory: \"lots\" is not a size");
    expect(PARSE("a", "b", "c"), "one word too many: \"c\"");
}

static void a_list_has_an_end(void **state)
{
    (void)state;
    const char *argv[OPTION_LIST_MAX + 2] = {NULL};
    for (int i = 0; i < OPTION_LIST_MAX; i++)
        argv[i] = "--advertise=x";
    assert_int_equal(parse(argv), 0);
    assert_int_equal(a.list.n, OPTION_LIST_MAX);
    argv[OPTION_LIST_MAX] = "--advertise=x";
    expect(parse(argv), "more than");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_have_their_fallbacks),
        cmocka_unit_test(both_forms_and_any_order),
        cmocka_unit_test(words_behind_two_dashes_and_a_dash_alone),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_list_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
