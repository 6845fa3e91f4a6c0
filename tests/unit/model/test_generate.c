/* Generation: the window slides, the future does not leak back, and choosing follows temperature, top-k and seed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "kernels/registry.h"
#include "model/generate.h"
#include "tests/unit/model/random_checkpoint.h"
#include "tests/unit/store/temp_dir.h"

static struct kern kern;
static struct generate *g;
static uint32_t V, T;

static int setup(void **state)
{
    void *dir;
    char *path = NULL;
    int r;

    (void)state;
    if (temp_dir_make(&dir) < 0 || kern_open("cpu", 1, &kern, NULL) < 0)
        return -1;
    r = random_checkpoint(dir, &path, NULL);
    if (r == 0)
        r = generate_open(path, &kern, &g, NULL);
    mem_free(path);
    if (r < 0 || temp_dir_remove(&dir) < 0) /* what was loaded does not need the file any more */
        return -1;
    V = generate_model(g)->n_vocab;
    T = generate_model(g)->n_ctx;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    g = generate_free(g);
    kern_close(&kern);
    return 0;
}

struct text {
    uint8_t bytes[256];
    size_t n, max; /* max > 0: stop there */
    int answer;
};

static int collect(void *arg, const uint8_t *bytes, size_t n)
{
    struct text *t = arg;

    assert_true(t->n + n <= sizeof(t->bytes));
    memcpy(t->bytes + t->n, bytes, n);
    t->n += n;
    return t->max > 0 && t->n >= t->max ? t->answer : 0;
}

static struct generate_options options_of(const char *prompt, uint64_t n, double temperature, uint32_t top_k,
                                          uint64_t seed)
{
    return (struct generate_options){(const uint8_t *)prompt, strlen(prompt), n, temperature, top_k, seed};
}

static struct text generated(const struct generate_options *o)
{
    struct text t = {.n = 0};

    assert_int_equal(generate_text(g, o, collect, &t, NULL), 0);
    assert_int_equal(t.n, o->n_tokens);
    return t;
}

static void later_tokens_do_not_change_earlier_logits(void **state)
{
    const int32_t a[5] = {1, 2, 3, 4, 5}, b[5] = {1, 2, 3, 200, 0};
    float *x = mem_calloc(5 * V, sizeof(float)), *y = mem_calloc(5 * V, sizeof(float));

    (void)state;
    assert_int_equal(generate_logits(g, a, 5, 0, x), 0);
    assert_int_equal(generate_logits(g, b, 5, 0, y), 0);
    assert_memory_equal(x, y, 3 * V * sizeof(float));
    assert_memory_not_equal(x + 3 * V, y + 3 * V, V * sizeof(float));
    assert_int_equal(generate_logits(g, a, 3, 2, y), 0); /* one row alone, and shorter */
    assert_memory_equal(x + 2 * V, y, V * sizeof(float));
    mem_free(x);
    mem_free(y);
}

static void token_outside_the_vocabulary_is_refused(void **state)
{
    const int32_t tokens[2] = {0, (int32_t)V}, negative[1] = {-1};
    float *x = mem_calloc(2 * V, sizeof(float));

    (void)state;
    assert_int_equal(generate_logits(g, tokens, 2, 0, x), -E_INVAL);
    assert_int_equal(generate_logits(g, negative, 1, 0, x), -E_INVAL);
    assert_int_equal(generate_logits(g, tokens, 1, 0, x), 0);
    mem_free(x);
}

/* Greedy text, longer than the window, one token at a time by hand. */
static void greedy_text_is_the_argmax_over_a_sliding_window(void **state)
{
    const struct generate_options o = options_of("shoal", 3 * T, 0, 0, 0);
    const struct text t = generated(&o);
    int32_t *tokens = mem_calloc(5 + t.n, sizeof(int32_t));
    float *x = mem_calloc(V, sizeof(float));

    (void)state;
    for (size_t i = 0; i < 5; i++)
        tokens[i] = "shoal"[i];
    for (size_t i = 0; i < t.n; i++) {
        const size_t n = 5 + i, from = n > T ? n - T : 0;
        uint32_t best = 0;

        assert_int_equal(generate_logits(g, tokens + from, n - from, n - from - 1, x), 0);
        for (uint32_t v = 1; v < V; v++)
            best = x[v] > x[best] ? v : best;
        assert_int_equal(t.bytes[i], best);
        tokens[n] = (int32_t)best;
    }
    mem_free(tokens);
    mem_free(x);
}

static void long_prompt_counts_by_its_end(void **state)
{
    const struct generate_options whole = options_of("0123456789abcdefghijklmnop", 8, 0, 0, 0);
    struct generate_options end = whole;
    struct text a, b;

    (void)state;
    end.prompt += end.n_prompt - T;
    end.n_prompt = T;
    a = generated(&whole);
    b = generated(&end);
    assert_memory_equal(a.bytes, b.bytes, 8);
}

static void empty_prompt_is_a_line_end(void **state)
{
    const struct generate_options none = options_of("", 8, 0, 0, 0), line = options_of("\n", 8, 0, 0, 0);
    const struct text a = generated(&none), b = generated(&line);

    (void)state;
    assert_memory_equal(a.bytes, b.bytes, 8);
}

static void seed_decides_the_text(void **state)
{
    const struct generate_options o = options_of("a", 64, 1, 0, 1), other = options_of("a", 64, 1, 0, 2);
    const struct text a = generated(&o), again = generated(&o), b = generated(&other);

    (void)state;
    assert_memory_equal(a.bytes, again.bytes, 64);
    assert_memory_not_equal(a.bytes, b.bytes, 64);
}

static void top_1_is_greedy_at_any_temperature(void **state)
{
    const struct generate_options o = options_of("a", 32, 5, 1, 1), greedy = options_of("a", 32, 0, 0, 9);
    const struct text a = generated(&o), b = generated(&greedy);

    (void)state;
    assert_memory_equal(a.bytes, b.bytes, 32);
}

static void sink_can_end_it(void **state)
{
    const struct generate_options o = options_of("a", 32, 0, 0, 0);
    struct text t = {.max = 3, .answer = 1}, failing = {.max = 3, .answer = -E_IO};

    (void)state;
    assert_int_equal(generate_text(g, &o, collect, &t, NULL), 0);
    assert_int_equal(t.n, 3);
    assert_int_equal(generate_text(g, &o, collect, &failing, NULL), -E_IO);
    assert_int_equal(failing.n, 3);
}

static void senseless_temperature_is_refused(void **state)
{
    const double temperatures[] = {-1, (double)NAN, (double)INFINITY};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct generate_options o = options_of("a", 1, temperatures[i], 0, 0);
        struct reason why = {0};
        struct text t = {.n = 0};

        assert_int_equal(generate_text(g, &o, collect, &t, &why), -E_INVAL);
        assert_non_null(strstr(why.text, "temperature"));
    }
}

/* Shares of 40,000 draws against softmax(logits / temperature) over the top three. */
static void picks_follow_the_softmax_of_the_top_k(void **state)
{
    enum { DRAWS = 40000 };
    const float logits[5] = {0.5f, -3, 2, 1, -1};
    const double temperature = 0.8;
    struct rng rng = rng_make(3, "test");
    double share[5] = {0}, total = 0;
    int32_t token;

    (void)state;
    for (int i = 0; i < DRAWS; i++) {
        assert_int_equal(generate_pick(logits, 5, temperature, 3, &rng, &token), 0);
        share[token] += 1.0 / DRAWS;
    }
    assert_true(share[1] == 0 && share[4] == 0);
    for (int i = 0; i < 5; i++)
        total += i == 1 || i == 4 ? 0 : exp((double)logits[i] / temperature);
    for (int i = 0; i < 5; i++) {
        const double want = i == 1 || i == 4 ? 0 : exp((double)logits[i] / temperature) / total;

        assert_true(fabs(share[i] - want) < 0.01); /* four standard deviations */
    }
}

static void ties_go_to_the_smaller_token_and_nan_is_told(void **state)
{
    const float ties[4] = {0, 1, 1, 0}, nan[2] = {0, NAN}, infinite[2] = {INFINITY, 0};
    struct rng rng = rng_make(1, "test");
    int32_t token = -1;

    (void)state;
    assert_int_equal(generate_pick(nan, 2, 1, 0, &rng, &token), -E_NUMERIC);
    assert_int_equal(generate_pick(infinite, 2, 0, 0, &rng, &token), -E_NUMERIC);
    assert_int_equal(token, -1);
    assert_int_equal(generate_pick(ties, 4, 0, 0, &rng, &token), 0);
    assert_int_equal(token, 1);
    assert_int_equal(generate_pick(ties, 4, 1, 1, &rng, &token), 0);
    assert_int_equal(token, 1);
}

static void open_of_what_is_no_checkpoint_says_so(void **state)
{
    struct generate *none = NULL;
    struct reason why = {0};

    (void)state;
    assert_int_equal(generate_open("/nonexistent/checkpoint", &kern, &none, &why), -E_NOENT);
    assert_non_null(strstr(why.text, "/nonexistent/checkpoint"));
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(later_tokens_do_not_change_earlier_logits),
        cmocka_unit_test(token_outside_the_vocabulary_is_refused),
        cmocka_unit_test(greedy_text_is_the_argmax_over_a_sliding_window),
        cmocka_unit_test(long_prompt_counts_by_its_end),
        cmocka_unit_test(empty_prompt_is_a_line_end),
        cmocka_unit_test(seed_decides_the_text),
        cmocka_unit_test(top_1_is_greedy_at_any_temperature),
        cmocka_unit_test(sink_can_end_it),
        cmocka_unit_test(senseless_temperature_is_refused),
        cmocka_unit_test(picks_follow_the_softmax_of_the_top_k),
        cmocka_unit_test(ties_go_to_the_smaller_token_and_nan_is_told),
        cmocka_unit_test(open_of_what_is_no_checkpoint_says_so),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
