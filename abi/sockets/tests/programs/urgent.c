/* Uses out-of-band data. TCP supports it and the edge does not. */
#include "pair.h"

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_client, fd = connected(&is_client);
    char byte;
    if (is_client) {
        CHECK(send(fd, "!", 1, MSG_OOB) == 1);
        settle(fd, 1);
        CHECK(read(fd, &byte, 1) == 0);
    } else {
        int on = 1;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
        CHECK(read(fd, &byte, 1) == 1);
        printf("urgent %c\n", byte);
        settle(fd, 0);
    }
    CHECK(close(fd) == 0);
    return over(is_client);
}
