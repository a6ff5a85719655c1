"""Client of services with protocols other than HTTP: sockets_services.py redis|memcached|gather|verify ADDRESS PORT ...

redis, memcached: IN OUT NAME...  stores files, fetches them again
gather: COUNT                     reads the XML of gmond COUNT times
verify: SECONDS                   writes values to redis and reads them again, many at once, and checks them
"""

import os
import socket
import sys
import time
import xml.etree.ElementTree

what, address, port, *rest = sys.argv[1:]


def connected():
    return socket.create_connection((address, int(port)), timeout=60)


def request(*words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def answer(stream):
    """A value of redis."""
    line = stream.readline()
    if line[:1] == b"+":
        return line[1:].strip()
    assert line[:1] == b"$", line
    count = int(line[1:])
    value = stream.read(count)
    assert len(value) == count and stream.read(2) == b"\r\n"
    return value


def redis(folder, fetched, *names):
    with connected() as s, s.makefile("rb") as stream:
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                s.sendall(request(b"SET", name.encode(), file.read()))
            assert answer(stream) == b"OK"
        for name in names:
            s.sendall(request(b"GET", name.encode()))
            with open(os.path.join(fetched, name), "wb") as file:
                file.write(answer(stream))


def memcached(folder, fetched, *names):
    with connected() as s, s.makefile("rb") as stream:
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                value = file.read()
            s.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (name.encode(), len(value), value))
            assert stream.readline() == b"STORED\r\n"
        for name in names:
            s.sendall(b"get %s\r\n" % name.encode())
            words = stream.readline().split()
            assert words[:2] == [b"VALUE", name.encode()], words
            value = stream.read(int(words[3]))
            assert stream.readline() == b"\r\n" and stream.readline() == b"END\r\n"
            with open(os.path.join(fetched, name), "wb") as file:
                file.write(value)


def gather(count):
    for _ in range(int(count)):
        with connected() as s:
            text = b"".join(iter(lambda: s.recv(8192), b""))
        tree = xml.etree.ElementTree.fromstring(text)
        assert tree.tag == "GANGLIA_XML" and tree.find("CLUSTER") is not None
    print("gathered", count)


def verify(seconds):
    end, turn = time.monotonic() + float(seconds), 0
    with connected() as s, s.makefile("rb") as stream:
        while time.monotonic() < end:
            pairs = [(b"key-%d-%d" % (os.getpid(), i), b"%d-%d-" % (turn, i) * (i * 40 + 1)) for i in range(50)]
            s.sendall(b"".join(request(b"SET", key, value) for key, value in pairs))
            assert all(answer(stream) == b"OK" for _ in pairs)
            s.sendall(b"".join(request(b"GET", key) for key, _ in pairs))
            assert all(answer(stream) == value for _, value in pairs)
            turn += 1
    print("turns", turn)


{"redis": redis, "memcached": memcached, "gather": gather, "verify": verify}[what](*rest)
