/* SHA-256 of many sequences, by OpenSSL. */

#include <stddef.h>
#include <stdint.h>

typedef int init_function(void *state);
typedef int update_function(void *state, const void *text, size_t size);
typedef int final_function(uint8_t *digest, void *state);

/* The digests, 32 bytes each, of the pieces of `text` that end at `ends`. Returns 0 when OpenSSL fails. */
int digests(const uint8_t *text, const int64_t *ends, int64_t count, uint8_t *digest,
            init_function *init, update_function *update, final_function *final)
{
    uint8_t state[512] __attribute__((aligned(16))); /* a SHA256_CTX has 112 bytes */
    int64_t start = 0;
    for (int64_t piece = 0; piece < count; start = ends[piece++], digest += 32)
        if (!init(state) || !update(state, text + start, ends[piece] - start)
            || !final(digest, state))
            return 0;
    return 1;
}
