/* Asking a running coordinator how the job goes: one question to its lobby, one answer. Anyone with the invite may.
 *
 * The answer is the JSON object that coord_status writes. */
#ifndef SHOAL_SCHEDULER_STATUS_CLIENT_H
#define SHOAL_SCHEDULER_STATUS_CLIENT_H

#include "crypto/invite.h"
#include "runtime/base/status.h"

/* Tries all the invite's addresses at once. *ret_json (mem_free) is the answer's text. -E_UNREACHABLE: nobody there, or
 * no answer within timeout_ms; -E_AUTH: another key than the invite's, or refused; -E_VERSION; -E_PROTO; -E_NOMEM. */
int status_client_get(const struct invite *invite, int timeout_ms, char **ret_json, struct reason *why);

#endif
