//! Greetings, which two queue pairs exchange when they connect. A greeting is the private data of
//! Hello and Accept of the service VERBS. The private data of Reject is a [`Refusal`] instead
//! (protocol.md §10.2).

use verbs::{Gid, QueuePairType};

/// The service of queue pairs whose programs exchange the queue pair numbers themselves.
pub(crate) const SERVICE: u32 = 0x5645_5242;

/// A greeting: the properties that a queue pair announces in Hello or Accept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Greeting {
    /// Type of the connection: reliable or unreliable.
    pub(crate) kind: QueuePairType,
    /// RNR timer code. The code stands for the time after which the peer may retransmit a message
    /// for which the sending end had no receive posted.
    pub(crate) not_ready_timer: u8,
    /// Number that distinguishes consecutive attempts to connect with one queue pair number.
    pub(crate) life: u32,
    /// The queue pair to which the greeting is addressed.
    pub(crate) destination: QueuePairPlace,
    /// The queue pair that sends the greeting.
    pub(crate) source: QueuePairPlace,
    /// First packet number that the end which sends the greeting expects. Its program got the
    /// number from the peer's program.
    pub(crate) receive_psn: u32,
    /// First packet number that the end which sends the greeting uses, if it is known.
    pub(crate) send_psn: Option<u32>,
}

/// Identity of a queue pair. The order of identities decides which end sends the first request.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct QueuePairPlace {
    /// Queue pair number.
    pub(crate) number: u32,
    /// GID of the queue pair's port.
    pub(crate) gid: Gid,
}

/// Why an end rejects a request. The private data of Reject contains this value. The requester
/// repeats its request, because the cause may disappear.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// No queue pair has this number.
    UnknownNumber = 1,
    /// The queue pair expects another peer: the transport service or the packet numbers in the
    /// request differ from the expected ones.
    Another = 2,
    /// The private data is not a greeting.
    NotUnderstood = 3,
    /// There are already too many held requests for this queue pair.
    TooMany = 4,
}

impl Refusal {
    /// Returns the private data of the Reject.
    pub(crate) const fn encode(self) -> [u8; 1] {
        [self as u8]
    }
}

impl Greeting {
    //= protocol.md: verbs.1
    /// Encodes the private data of Hello or Accept.
    pub(crate) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let mut put = |at: usize, what: &[u8]| {
            if let Some(room) = bytes.get_mut(at..at + what.len()) {
                room.copy_from_slice(what);
            }
        };
        let kind = u8::from(self.kind == QueuePairType::Unreliable);
        let flags = if self.send_psn.is_some() { HAS_SEND_PSN } else { 0 };
        put(0, &MAGIC);
        put(4, &[VERSION, kind, self.not_ready_timer, flags]);
        put(8, &self.life.to_le_bytes());
        put(12, &self.destination.number.to_le_bytes());
        put(16, &self.source.number.to_le_bytes());
        put(20, &self.receive_psn.to_le_bytes());
        put(24, &self.send_psn.unwrap_or(0).to_le_bytes());
        put(32, &self.source.gid.0);
        put(48, &self.destination.gid.0);
        bytes
    }

    //= protocol.md: verbs.1
    /// Decodes private data. Returns `None` if the data is not a greeting.
    pub(crate) fn decode(private_data: &[u8]) -> Option<Self> {
        let bytes: &[u8; GREETING_BYTES] = private_data.try_into().ok()?;
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let gid = |at: usize| Some(Gid(bytes.get(at..at + 16)?.try_into().ok()?));
        let number = |at: usize| word(at).filter(|&number| number <= NUMBER_MAX);
        let &[version, kind, not_ready_timer, flags] = bytes.get(4..8)? else { return None };
        if *bytes.first_chunk()? != MAGIC || version != VERSION || not_ready_timer > 31 {
            return None;
        }
        let kind = match kind {
            0 => QueuePairType::Reliable,
            1 => QueuePairType::Unreliable,
            _ => return None,
        };
        let send_psn = number(24)?;
        Some(Self {
            kind,
            not_ready_timer,
            life: word(8)?,
            destination: QueuePairPlace { number: number(12)?, gid: gid(48)? },
            source: QueuePairPlace { number: number(16)?, gid: gid(32)? },
            receive_psn: number(20)?,
            send_psn: (flags & HAS_SEND_PSN != 0).then_some(send_psn),
        })
    }
}

/// Decodes arbitrary bytes as a greeting, for fuzzing. If the decoder accepts a greeting, encodes
/// it, decodes it again, and panics if the result differs.
#[doc(hidden)]
pub fn fuzz_greeting(bytes: &[u8]) {
    if let Some(greeting) = Greeting::decode(bytes) {
        assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
    }
}

/// Size of an encoded [`Greeting`], in bytes.
pub(crate) const GREETING_BYTES: usize = 64;

/// First bytes of a greeting.
const MAGIC: [u8; 4] = *b"EVQP";
const VERSION: u8 = 1;
/// Flag: the greeting contains the first packet number that its sender uses.
const HAS_SEND_PSN: u8 = 1;
/// Largest queue pair number and largest packet number. Both have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = QueuePairPlace> {
        (0..=NUMBER_MAX, any::<[u8; 16]>())
            .prop_map(|(number, gid)| QueuePairPlace { number, gid: Gid(gid) })
    }

    fn greeting() -> impl Strategy<Value = Greeting> {
        let psn = 0..=NUMBER_MAX;
        let send_psn = proptest::option::of(psn.clone());
        (any::<bool>(), 0..32_u8, any::<u32>(), place(), place(), psn, send_psn).prop_map(
            |(unreliable, not_ready_timer, life, destination, source, receive_psn, send_psn)| {
                let kind = [QueuePairType::Reliable, QueuePairType::Unreliable];
                let kind = kind[usize::from(unreliable)];
                Greeting { kind, not_ready_timer, life, destination, source, receive_psn, send_psn }
            },
        )
    }

    proptest! {
        //= protocol.md: verbs.1
        #[test]
        fn decode_returns_what_was_encoded(greeting in greeting(), other in 0..130_usize) {
            let bytes = greeting.encode();
            prop_assert_eq!(Greeting::decode(&bytes), Some(greeting));
            prop_assume!(other != bytes.len());
            let mut longer = bytes.to_vec();
            longer.resize(other, 0);
            prop_assert_eq!(Greeting::decode(&longer), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            greeting in greeting(),
            at in 0..GREETING_BYTES,
            bit in 0..8_u32,
        ) {
            fuzz_greeting(&bytes);
            let mut changed = greeting.encode();
            changed[at] ^= 1_u8 << bit;
            fuzz_greeting(&changed);
        }

        //= protocol.md: verbs.1
        #[test]
        fn invalid_numbers_and_greetings_are_refused(greeting in greeting(), at in 0..4_usize) {
            for (at, value) in [(at, 0), (4, 2), (5, 2), (6, 32), (15, 1), (19, 1), (23, 1), (27, 1)] {
                let mut changed = greeting.encode();
                changed[at] = value;
                prop_assert_eq!(Greeting::decode(&changed), None, "{}", at);
            }
        }
    }
}
