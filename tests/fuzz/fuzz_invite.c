/* Fuzzes invite_decode twice with each input: as the text a person may paste, and as the bytes under a text whose
 * length and checksum are right, which random text would never reach. What is accepted must encode to a text that
 * decodes to the same invite. */
#include <stdlib.h>
#include <string.h>

#include "crypto/base32.h"
#include "crypto/hash.h"
#include "crypto/invite.h"
#include "tests/fuzz/fuzz.h"

#define PAYLOAD_MAX 2400u

static void decode(const char *text)
{
    char again[INVITE_TEXT_MAX + 1];
    struct invite inv, back;
    struct reason why = {0};

    if (invite_decode(text, &inv, &why) < 0) {
        if (why.text[0] == '\0')
            abort(); /* every mistake has its sentence */
        return;
    }
    if (invite_encode(&inv, again) != 0 || invite_decode(again, &back, NULL) != 0 ||
        memcmp(&inv, &back, sizeof(inv)) != 0)
        abort();
}

static void decode_sealed(const uint8_t *data, size_t size)
{
    uint8_t payload[PAYLOAD_MAX], hash[HASH_BYTES];
    char text[6 + BASE32_LEN(PAYLOAD_MAX) + 1] = "shoal1";
    const size_t n = 3 + size + 4;

    if (size == 0 || n > PAYLOAD_MAX)
        return;
    payload[0] = data[0] < 8 ? data[0] : 1; /* other versions now and then */
    payload[1] = (uint8_t)n;
    payload[2] = (uint8_t)(n >> 8);
    memcpy(payload + 3, data, size);
    hash_of(payload, n - 4, hash);
    memcpy(payload + n - 4, hash, 4);
    base32_encode(payload, n, text + 6);
    decode(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    decode(text);
    free(text);
    decode_sealed(data, size);
    return 0;
}
