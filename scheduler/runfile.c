/* See runfile.h. */
#include "scheduler/runfile.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/jsonw.h"
#include "runtime/base/mem.h"
#include "runtime/store/file.h"
#include "runtime/store/json.h"

#define RUNFILE_BYTES_MAX 4096

static void hex(const uint8_t *bytes, size_t n, char *ret)
{
    for (size_t i = 0; i < n; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

static int load(const char *path, struct runfile *ret, struct reason *why)
{
    struct json *doc = NULL;
    int status = json_load(path, RUNFILE_BYTES_MAX, &doc, why);

    if (status == -E_NOENT) {
        *ret = (struct runfile){0};
        key_random(ret->job_id, sizeof ret->job_id);
        key_random(ret->capability, sizeof ret->capability);
        return 0;
    }
    if (status == 0)
        status = json_get_u64(doc, "term", &ret->term, why);
    if (status == 0)
        status = json_get_hex(doc, "job_id", ret->job_id, sizeof ret->job_id, why);
    if (status == 0)
        status = json_get_hex(doc, "capability", ret->capability, sizeof ret->capability, why);
    json_free(doc);
    return status < 0 ? reason_wrap(why, status, "%s", path) : 0;
}

static int save(const char *path, const struct runfile *r, struct reason *why)
{
    char term[24], id[2 * INVITE_JOB_ID_BYTES + 1], capability[2 * INVITE_CAPABILITY_BYTES + 1];
    struct jsonw w;
    int status = -E_NOMEM;

    snprintf(term, sizeof term, "%llu", (unsigned long long)r->term);
    hex(r->job_id, sizeof r->job_id, id);
    hex(r->capability, sizeof r->capability, capability);
    jsonw_init(&w);
    jsonw_object(&w, NULL);
    jsonw_str(&w, "term", term);
    jsonw_str(&w, "job_id", id);
    jsonw_str(&w, "capability", capability);
    jsonw_object_end(&w);
    if (jsonw_text(&w))
        status = file_write(path, jsonw_text(&w), strlen(jsonw_text(&w)), 0600, why);
    jsonw_done(&w);
    return status;
}

int runfile_begin_term(const char *dir, struct runfile *ret, struct reason *why)
{
    cleanup_mem_ char *path = file_join(dir, "run.json");
    struct runfile r;

    if (!path)
        return -E_NOMEM;
    int status = load(path, &r, why);

    if (status < 0)
        return status;
    r.term++;
    status = save(path, &r, why);
    if (status == 0)
        *ret = r;
    return status;
}
