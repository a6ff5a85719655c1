//! The protocol between the host and the agent of a guest. `tools/guest/agent.c` describes it.

/// Kills the command of the request before.
pub(crate) const KILL: &[u8] = b"K";

/// Number of bytes of the name of a request.
const NAME_BYTES: usize = 16;

/// Bytes of a frame before its payload: the kind, and the length in four bytes.
const HEADER_BYTES: usize = 5;

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The agent has started the command.
    Started,
    /// Bytes that the command wrote to standard output.
    Output(Vec<u8>),
    /// Bytes that the command wrote to standard error.
    Errors(Vec<u8>),
    /// The command's exit status. The answer ends here.
    Status(u8),
}

/// Takes the bytes of an answer in pieces of any length, and returns its parts.
#[derive(Debug)]
pub(crate) struct Answer {
    name: [u8; NAME_BYTES],
    has_started: bool,
    bytes: Vec<u8>,
}

/// Returns the bytes of a request.
pub(crate) fn request(name: &[u8; NAME_BYTES], command: &str) -> Vec<u8> {
    let length = format!("{:08x}", command.len());
    [b"R", name.as_slice(), length.as_bytes(), command.as_bytes()].concat()
}

/// Returns a name for a request, made of random bytes.
pub(crate) fn name_from(random: [u8; NAME_BYTES / 2]) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    for (digit, index) in name.iter_mut().zip(0..) {
        let byte = random.get(index / 2).copied().unwrap_or_default();
        let four_bits = if index % 2 == 0 { byte >> 4 } else { byte & 15 };
        *digit = b"0123456789abcdef".get(usize::from(four_bits)).copied().unwrap_or(b'0');
    }
    name
}

impl Answer {
    /// Returns the state before the first byte of the answer to the request with this name.
    pub(crate) fn to(name: [u8; NAME_BYTES]) -> Self {
        Self { name, has_started: false, bytes: Vec::new() }
    }

    /// Takes bytes that arrived.
    pub(crate) fn handle_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next part, or `None` until more bytes arrive. Call it after each
    /// [`Answer::handle_bytes`] until it returns `None`.
    pub(crate) fn poll_part(&mut self) -> Option<Part> {
        if !self.has_started {
            return self.poll_start();
        }
        let (kind, length) = match self.bytes.as_slice() {
            [kind, a, b, c, d, ..] => (*kind, u32::from_le_bytes([*a, *b, *c, *d])),
            _ => return None,
        };
        let end = HEADER_BYTES.checked_add(usize::try_from(length).ok()?)?;
        let payload = self.bytes.get(HEADER_BYTES..end)?.to_vec();
        self.bytes.drain(..end);
        match kind {
            b'o' => Some(Part::Output(payload)),
            b'e' => Some(Part::Errors(payload)),
            b'x' => payload.first().map(|status| Part::Status(*status)),
            _ => None,
        }
    }

    /// Drops what is left of an earlier answer, up to this request's name.
    fn poll_start(&mut self) -> Option<Part> {
        let Some(start) = self.bytes.windows(NAME_BYTES).position(|bytes| bytes == self.name)
        else {
            // The last bytes may be the beginning of the name.
            let dropped = self.bytes.len().saturating_sub(NAME_BYTES - 1);
            self.bytes.drain(..dropped);
            return None;
        };
        self.bytes.drain(..start + NAME_BYTES);
        self.has_started = true;
        Some(Part::Started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: [u8; NAME_BYTES] = *b"0123456789abcdef";

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_le_bytes();
        [&[kind], length.as_slice(), payload].concat()
    }

    #[test]
    fn an_answer_is_the_same_however_it_is_cut() {
        let stale = [frame(b'o', b"0123456789abcde"), frame(b'x', &[9])].concat();
        let stream = [
            stale,
            NAME.to_vec(),
            frame(b'o', b"out\0put"),
            frame(b'e', b"error"),
            frame(b'o', b""),
            frame(b'x', &[42]),
        ]
        .concat();
        let whole = [
            Part::Started,
            Part::Output(b"out\0put".to_vec()),
            Part::Errors(b"error".to_vec()),
            Part::Output(Vec::new()),
            Part::Status(42),
        ];
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let mut answer = Answer::to(NAME);
                let mut parts = Vec::new();
                for piece in [&stream[..first], &stream[first..second], &stream[second..]] {
                    answer.handle_bytes(piece);
                    parts.extend(std::iter::from_fn(|| answer.poll_part()));
                }
                assert_eq!(parts, whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn output_without_the_name_is_dropped_and_takes_no_memory() {
        let mut answer = Answer::to(NAME);
        for _ in 0..1000 {
            answer.handle_bytes(b"0123456789abcdeX");
            assert_eq!(answer.poll_part(), None);
        }
        assert!(answer.bytes.len() < NAME_BYTES);
    }

    #[test]
    fn a_request_contains_the_name_and_the_length_of_the_command() {
        assert_eq!(request(&NAME, "ls -l"), b"R0123456789abcdef00000005ls -l");
        assert_eq!(&name_from([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]), &NAME);
    }
}
