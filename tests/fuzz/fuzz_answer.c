/* A hub's answer to a worker: a flat object of numbers and texts. What is read lies in range. */
#include "fuzz.h"

#include "service/request.h"

enum { MOST = 1000, CAP = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[CAP], *answer = malloc(size + (size == 0));
    int64_t number = -1;
    REQUIRE(answer != NULL);
    if (size > 0) memcpy(answer, data, size);
    const int has_number = hpc_answer_number(answer, size, "n", MOST, &number);
    REQUIRE(has_number ? number >= 0 && number <= MOST : number == -1);
    memset(text, 'x', sizeof text);
    if (hpc_answer_text(answer, size, "t", text, sizeof text)) {
        const char *end = memchr(text, 0, sizeof text);
        REQUIRE(end != NULL && strchr(text, '"') == NULL && strchr(text, '\\') == NULL);
    } else {
        REQUIRE(text[0] == 'x' && text[CAP - 1] == 'x');
    }
    free(answer);
    return 0;
}
