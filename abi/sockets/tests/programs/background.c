/* A client that sends and receives, and then calls daemon(3). The child continues, and the
 * parent ends. */
#include "pair.h"

int main(void) {
    int is_client, fd = settled(&is_client);
    char byte;
    if (!is_client) {
        int answers = 0;
        while (read(fd, &byte, 1) == 1 && write(fd, &byte, 1) == 1) answers++;
        printf("%d answers\n", answers);
        return 0;
    }
    for (int i = 0; i < 200; i++) {
        if (i == 50) CHECK(daemon(1, 1) == 0);
        byte = (char)i;
        CHECK(write(fd, &byte, 1) == 1);
        CHECK(read(fd, &byte, 1) == 1 && byte == (char)i);
    }
    printf("talked on\n");
    return 0;
}
