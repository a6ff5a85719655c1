//! Tests of messages whose memory the library allocates.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use ethernot::{OperationOptions, Rights};
use pair::{LIMIT, Pair, loopback};

const NONE: OperationOptions = OperationOptions::NONE;

#[test]
fn messages_of_any_length_are_sent_and_received_without_registration() {
    let pair = Pair::build(loopback(), loopback(), Rights::NONE);
    let (client, server) = (&pair.client, &pair.server);
    for length in [0, 1, 64, 65, 1000, 100_000, 3_000_000] {
        let message: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
        let receive = server.connection.receive_message(3_000_000).expect("it is posted");
        let send = client.connection.send_message(&message, NONE).expect("it is posted");
        let came = receive.wait(Some(LIMIT)).expect("a message");
        drop(receive);
        assert!(came.to_vec().expect("it is kept") == message, "{length} bytes differ");
        assert_eq!(send.wait(Some(LIMIT)), Ok(0));
    }
    // The memory of the messages must be deregistered.
    for endpoint in [&client.endpoint, &server.endpoint] {
        while endpoint.memory().regions() > 1 {
            endpoint.drive().expect("not forked");
        }
    }
}

#[test]
fn many_messages_are_in_flight_and_no_send_blocks() {
    let pair = Pair::build(loopback(), loopback(), Rights::NONE);
    let (client, server) = (&pair.client, &pair.server);
    let receives: Vec<_> = (0..100)
        .map(|_| server.connection.receive_message(70_000).expect("it is posted"))
        .collect();
    for number in 0..100_u8 {
        let message = vec![number; 60_000];
        drop(client.connection.send_message(&message, NONE).expect("it is posted"));
    }
    for (number, receive) in (0..100).zip(receives) {
        let message = receive.wait(Some(LIMIT)).expect("a message").to_vec().expect("it is kept");
        assert!(message == vec![number; 60_000], "message {number}");
    }
}
