//! Decodes arbitrary bytes as control messages. Decoding must end and must not panic. Encoding and
//! decoding accepted messages must give the same messages.

use wire_edge::{CONTROL_BYTES_MAX, control_messages};

/// Runs this fuzz target on one input.
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
