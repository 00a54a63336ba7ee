"""Messages over a socket."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.sandbox import protocol


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(st.lists(st.text(st.characters(exclude_categories=())) | st.integers() | st.none()))
def test_messages_arrive_whole_and_in_order(messages):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in messages:
            protocol.send(ours, message)
        assert [protocol.receive(theirs) for _ in messages] == messages


@pytest.mark.parametrize("sent", [b"", b"\0\0", struct.pack("!I", 5) + b"[1"])
def test_an_end_in_the_middle_is_noticed(pair, sent):
    ours, theirs = pair
    ours.sendall(sent)
    ours.close()
    with pytest.raises(ConnectionError):
        protocol.receive(theirs)


@pytest.mark.parametrize("body", [b"[1", b"\xff\xff", b"[" * 200_000, b"9" * 10_000, b""])
def test_what_is_not_json_is_malformed(pair, body):
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ours.sendall(struct.pack("!I", len(body)) + body)
    with pytest.raises(protocol.Malformed):
        protocol.receive(theirs)


def test_a_long_message_is_refused_before_it_is_read(pair):
    ours, theirs = pair
    ours.sendall(struct.pack("!I", protocol.LONGEST + 1))
    with pytest.raises(protocol.Malformed, match=str(protocol.LONGEST)):
        protocol.receive(theirs)
