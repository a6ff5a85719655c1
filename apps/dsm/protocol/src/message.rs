//! Messages between nodes: what the managers of locks and objects need, and the race detector.

use crate::clock::Clock;
use crate::diff::Bitmap;
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::transport::Reason;

/// Bytes before the clock.
const HEADER_BYTES: usize = 16;

/// Notices that travel with a lock, at most. Further ones are read from the log.
pub(crate) const GRANT_NOTICES_MAX: u32 = 64;

/// What a thread wants of an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// To hold a reader-writer lock with other readers.
    Share,
    /// To hold a reader-writer lock alone.
    Exclude,
    /// To release a shared reader-writer lock.
    Unshare,
    /// To release a reader-writer lock that it held alone.
    Unexclude,
    /// To take one from a semaphore.
    Take,
    /// To add to a semaphore.
    Give(u32),
    /// To wait for an event.
    Await,
    /// To set an event.
    Set,
    /// To clear an event.
    Clear,
    /// To be queued at a condition variable.
    Enqueue,
    /// To wake one waiter of a condition variable.
    Signal,
    /// To wake all waiters of a condition variable.
    Broadcast,
    /// To wait at a barrier of so many threads.
    Arrive(u32),
}

impl Question {
    /// Returns the code and the number on the wire.
    const fn code(self) -> (u8, u32) {
        match self {
            Self::Share => (0, 0),
            Self::Exclude => (1, 0),
            Self::Unshare => (2, 0),
            Self::Unexclude => (3, 0),
            Self::Take => (4, 0),
            Self::Give(count) => (5, count),
            Self::Await => (6, 0),
            Self::Set => (7, 0),
            Self::Clear => (8, 0),
            Self::Enqueue => (9, 0),
            Self::Signal => (10, 0),
            Self::Broadcast => (11, 0),
            Self::Arrive(count) => (12, count),
        }
    }

    const fn decode(code: u8, count: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Share,
            1 => Self::Exclude,
            2 => Self::Unshare,
            3 => Self::Unexclude,
            4 => Self::Take,
            5 => Self::Give(count),
            6 => Self::Await,
            7 => Self::Set,
            8 => Self::Clear,
            9 => Self::Enqueue,
            10 => Self::Signal,
            11 => Self::Broadcast,
            12 => Self::Arrive(count),
            _ => return None,
        })
    }
}

/// Why a manager refuses a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Objection {
    /// The object is of another kind.
    OtherKind,
    /// Threads wait at the barrier for another number of threads.
    OtherCount,
}

/// A message. `object` and `lock` are addresses of the program, by which it names the object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// To the manager: the sender wants the lock, and has applied the notices up to the clock.
    LockRequest { lock: u64, clock: Clock },
    /// From the manager to the last node in the queue: `to` is next, and has applied the notices of
    /// the receiver up to `known`.
    LockForward { lock: u64, to: Rank, known: u64 },
    /// To the next node: it has the lock, and must apply the notices up to the clock. `notices` are
    /// the last ones of the sender.
    LockGrant { lock: u64, clock: Clock, notices: Vec<PageNumber> },
    /// To the manager of an object.
    Ask { object: u64, thread: ThreadNumber, question: Question, clock: Clock },
    /// From the manager: the thread's wait has ended.
    Answer { object: u64, thread: ThreadNumber, clock: Clock },
    /// From the manager: the object cannot do that.
    Object { object: u64, thread: ThreadNumber, objection: Objection },
    /// To the race detector of a page: words that an interval of the sender has changed.
    Changed { page: PageNumber, position: u64, clock: Clock, words: Bitmap },
    /// To all: a node has died.
    Dead { rank: Rank, reason: Reason },
    /// To all: a thread of the sender releases the lock, which no thread of the sender holds.
    Locate { lock: u64, thread: ThreadNumber },
    /// The answer: the thread of this node that holds the lock.
    Holder { lock: u64, thread: ThreadNumber, holder: Option<ThreadNumber> },
}

impl Message {
    //= dsm-protocol.md: message.1
    /// Replaces the contents of `to` with the wire format.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.clear();
        let none = ThreadNumber(0);
        match self {
            Self::LockRequest { lock, clock } => {
                header(to, 1, 0, none, 0, *lock);
                clock.encode(to);
            }
            Self::LockForward { lock, to: next, known } => {
                header(to, 2, next.0, none, 0, *lock);
                to.extend_from_slice(&known.to_le_bytes());
            }
            Self::LockGrant { lock, clock, notices } => {
                header(to, 3, 0, none, notices.len() as u32, *lock);
                clock.encode(to);
                for page in notices {
                    to.extend_from_slice(&page.0.to_le_bytes());
                }
            }
            Self::Ask { object, thread, question, clock } => {
                let (code, count) = question.code();
                header(to, 4, code, *thread, count, *object);
                clock.encode(to);
            }
            Self::Answer { object, thread, clock } => {
                header(to, 5, 0, *thread, 0, *object);
                clock.encode(to);
            }
            Self::Object { object, thread, objection } => {
                header(to, 6, *objection as u8, *thread, 0, *object);
            }
            Self::Changed { page, position, clock, words } => {
                header(to, 7, 0, none, page.0, *position);
                clock.encode(to);
                to.extend_from_slice(&words.to_bytes());
            }
            Self::Dead { rank, reason } => {
                header(to, 8, rank.0, none, *reason as u32, 0);
            }
            Self::Locate { lock, thread } => header(to, 9, 0, *thread, 0, *lock),
            Self::Holder { lock, thread, holder } => {
                let number = holder.map_or(0, |holder| holder.0.into());
                header(to, 10, holder.is_some().into(), *thread, number, *lock);
            }
        }
    }

    //= dsm-protocol.md: message.2
    /// Decodes a message between `nodes` nodes. Returns `None` if it is malformed.
    pub(crate) fn decode(bytes: &[u8], nodes: usize) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [kind, code, low, high, count @ .., _, _, _, _, _, _, _, _] = *header;
        let [_, _, _, _, _, _, _, _, address @ ..] = *header;
        let thread = ThreadNumber(u16::from_le_bytes([low, high]));
        let count = u32::from_le_bytes(count);
        let address = u64::from_le_bytes(address);
        let rank = ((code as usize) < nodes).then_some(Rank(code));
        let clock_bytes = 8 * nodes;
        let length = match kind {
            1 | 4 | 5 => clock_bytes,
            2 => 8,
            3 if count <= GRANT_NOTICES_MAX => clock_bytes + 4 * count as usize,
            3 => return None,
            7 => clock_bytes + Bitmap::EMPTY.to_bytes().len(),
            _ => 0,
        };
        if rest.len() != length {
            return None;
        }
        let clock = || Clock::decode(rest, nodes);
        Some(match kind {
            1 => Self::LockRequest { lock: address, clock: clock()? },
            2 => {
                let known = u64::from_le_bytes(rest.try_into().ok()?);
                Self::LockForward { lock: address, to: rank?, known }
            }
            3 => {
                let pages = rest.get(clock_bytes..)?.as_chunks::<4>().0.iter();
                let notices = pages.map(|page| PageNumber(u32::from_le_bytes(*page))).collect();
                Self::LockGrant { lock: address, clock: clock()?, notices }
            }
            4 => {
                let question = Question::decode(code, count)?;
                Self::Ask { object: address, thread, question, clock: clock()? }
            }
            5 => Self::Answer { object: address, thread, clock: clock()? },
            6 => {
                let objection = match code {
                    0 => Objection::OtherKind,
                    1 => Objection::OtherCount,
                    _ => return None,
                };
                Self::Object { object: address, thread, objection }
            }
            7 => {
                let words = Bitmap::from_bytes(rest.get(clock_bytes..)?)?;
                let page = PageNumber(count);
                Self::Changed { page, position: address, clock: clock()?, words }
            }
            8 => {
                let reason = match count {
                    0 => Reason::Closed,
                    1 => Reason::Silent,
                    2 => Reason::Failed,
                    _ => return None,
                };
                Self::Dead { rank: rank?, reason }
            }
            9 => Self::Locate { lock: address, thread },
            10 => {
                let holder = match (code, u16::try_from(count).ok()?) {
                    (0, 0) => None,
                    (1, number) => Some(ThreadNumber(number)),
                    _ => return None,
                };
                Self::Holder { lock: address, thread, holder }
            }
            _ => return None,
        })
    }
}

/// Appends the first 16 bytes of a message.
fn header(to: &mut Vec<u8>, kind: u8, code: u8, thread: ThreadNumber, count: u32, address: u64) {
    to.extend_from_slice(&[kind, code]);
    to.extend_from_slice(&thread.0.to_le_bytes());
    to.extend_from_slice(&count.to_le_bytes());
    to.extend_from_slice(&address.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = (usize, Message)> {
        let parts = (any::<u64>(), any::<u16>(), any::<u32>(), 0_u8..13, any::<u64>());
        (1_usize..6, 0_u8..10, parts).prop_map(|(nodes, kind, parts)| {
            let (object, thread, count, code, position) = parts;
            let thread = ThreadNumber(thread);
            let rank = Rank(code % nodes as u8);
            let mut clock = Clock::zero(nodes);
            clock.raise(rank, position);
            let mut words = Bitmap::EMPTY;
            words.insert(thread.index() % 1024);
            let message = match kind {
                0 => Message::LockRequest { lock: object, clock },
                1 => Message::LockForward { lock: object, to: rank, known: position },
                2 => {
                    let notices = (0..count % 65).map(PageNumber).collect();
                    Message::LockGrant { lock: object, clock, notices }
                }
                3 => {
                    let question = Question::decode(code, count).unwrap();
                    Message::Ask { object, thread, question, clock }
                }
                4 => Message::Answer { object, thread, clock },
                5 => Message::Object { object, thread, objection: Objection::OtherCount },
                6 => Message::Changed { page: PageNumber(count), position, clock, words },
                7 => Message::Dead { rank, reason: Reason::Failed },
                8 => Message::Locate { lock: object, thread },
                _ => {
                    let holder = (code > 6).then_some(ThreadNumber(count as u16));
                    Message::Holder { lock: object, thread, holder }
                }
            };
            (nodes, message)
        })
    }

    proptest! {
        //= dsm-protocol.md: message.1
        #[test]
        fn a_decoded_message_is_the_encoded_one((nodes, message) in messages()) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert_eq!(Message::decode(&bytes, nodes), Some(message));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Message::decode(&bytes[..cut], nodes), None);
            }
        }

        //= dsm-protocol.md: message.2
        #[test]
        fn what_is_decoded_from_any_bytes_names_only_nodes_that_exist(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0_u8..12,
            nodes in 1_usize..8,
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            match Message::decode(&bytes, nodes) {
                Some(Message::LockForward { to: rank, .. } | Message::Dead { rank, .. }) => {
                    prop_assert!(rank.index() < nodes);
                }
                None => {}
                Some(message) => {
                    let mut again = Vec::new();
                    message.encode(&mut again);
                    prop_assert_eq!(again.len(), bytes.len());
                }
            }
        }
    }
}
