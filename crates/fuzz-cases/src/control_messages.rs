//! Any bytes as control messages: no panic, an end, and what is accepted survives encoding.

use wire_edge::{CONTROL_BYTES_MAX, control_messages};

/// Does so.
pub(crate) fn run(payload: &[u8]) {
    let mut messages = control_messages(payload);
    while let Some(item) = messages.next() {
        let Ok(message) = item else {
            assert!(messages.next().is_none());
            return;
        };
        let mut out = [0; CONTROL_BYTES_MAX];
        let length = message.encode(&mut out);
        let again: Vec<_> = control_messages(&out[..length]).collect();
        assert_eq!(again, [Ok(message)]);
    }
}
