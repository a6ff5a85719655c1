//! The lines that ranks print.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::SyncSender;

/// A line of a rank, without its end.
pub(super) struct Line {
    pub(super) rank: usize,
    pub(super) is_error: bool,
    pub(super) bytes: Vec<u8>,
}

/// Sends each line of a stream, until the stream or the receiver has ended. Divides long lines.
pub(super) fn forward(rank: usize, is_error: bool, stream: impl Read, lines: &SyncSender<Line>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut bytes = Vec::new();
        match (&mut stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if lines.send(Line { rank, is_error, bytes }).is_err() {
            return;
        }
    }
}

/// Bytes after which a line is divided, so that a rank that prints no line end fills no memory.
const LINE_BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn lines_of(stream: &[u8]) -> Vec<Vec<u8>> {
        let (sender, lines) = mpsc::sync_channel(16);
        forward(3, true, stream, &sender);
        drop(sender);
        lines.iter().map(|line| line.bytes).collect()
    }

    #[test]
    fn lines_come_without_their_ends_and_the_last_may_have_none() {
        assert_eq!(lines_of(b"one\n\ntwo"), [&b"one"[..], b"", b"two"]);
        assert!(lines_of(b"").is_empty());
    }

    #[test]
    fn a_line_without_an_end_is_divided() {
        let long = vec![b'x'; 100_000];
        let lengths: Vec<_> = lines_of(&long).iter().map(Vec::len).collect();
        assert_eq!(lengths, [65_536, 34_464]);
    }
}
