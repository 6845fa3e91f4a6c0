/* The invite: one string with all that a volunteer needs to join a job: addresses of the coordinator's lobby, its key,
 * the job's id, and the capability that opens the lobby. Text form: "shoal1" and base32 (lower case, no look-alikes),
 * with a checksum that tells a mistyped string from a dead address. */
#ifndef SHOAL_CRYPTO_INVITE_H
#define SHOAL_CRYPTO_INVITE_H

#include "crypto/key.h"
#include "runtime/base/bounds.h"

#define INVITE_CAPABILITY_BYTES 16
#define INVITE_JOB_ID_BYTES     8
#define INVITE_TEXT_MAX         4096

struct invite {
    struct key coordinator;
    uint8_t job_id[INVITE_JOB_ID_BYTES];
    uint8_t capability[INVITE_CAPABILITY_BYTES];
    uint32_t n_addrs;
    struct {
        char host[HOST_MAX_LEN + 1];
        uint16_t port; /* of the lobby */
    } addrs[ADDRS_MAX];
};

/* ret has room for INVITE_TEXT_MAX + 1. -E_INVAL on an invite that breaks the limits. */
int invite_encode(const struct invite *inv, char *ret);

/* Blanks and line breaks around and inside are forgiven. Each mistake has its sentence: not an invite at all, a
 * character that cannot be, cut short, mistyped (checksum), from a newer version. -E_INVAL / -E_VERSION. Survives any
 * input. */
int invite_decode(const char *text, struct invite *ret, struct reason *why);

#endif
