//! Control messages (protocol.md §3.5).

use crate::address::decode_address;
use crate::error::DecodeError;
use crate::fields::{self, Layout, layout_end};
use crate::identity::{LinkIndex, MessageNumber, OperationNumber, PeerAddr};
use crate::octets::{get, put};
use crate::parameters::ranged;
use crate::reason::CloseReason;

/// Maximum number of bytes of private data in a Close.
pub const CLOSE_PRIVATE_BYTES_MAX: usize = 128;
/// Size of the largest control message in bytes: a Close with the longest private data.
pub const CONTROL_BYTES_MAX: usize = HEADER_BYTES + CLOSE_BYTES + CLOSE_PRIVATE_BYTES_MAX;

const HEADER_BYTES: usize = layout_end(Layout::ControlMessage);
const PATH_BYTES: usize = layout_end(Layout::Path);
const LINK_STATUS_BYTES: usize = layout_end(Layout::LinkStatus);
const CLOSE_BYTES: usize = layout_end(Layout::Close);
const ADDRESS_BYTES: usize = layout_end(Layout::Address);
const LINKS_BYTES: usize = layout_end(Layout::Links);
const GONE_BYTES: usize = layout_end(Layout::Gone);
const NOT_READY_BYTES: usize = layout_end(Layout::NotReady);
const _: () = assert!(CLOSE_BYTES + CLOSE_PRIVATE_BYTES_MAX <= u8::MAX as usize);

/// How the peer may use a link.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum LinkStatus {
    /// The link may carry all frames.
    Available = 1,
    /// The link may carry data only while no available link works.
    Backup = 2,
    /// The link must not carry data at present.
    Down = 3,
    /// The sender of this status has removed the link, and the index is free.
    Removed = 4,
}

/// A control message, borrowed from its frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Control<'a> {
    /// Padding. The receiver ignores the body; the sender writes no body.
    Padding,
    /// Asks for an acknowledgement.
    Ping,
    /// Asks for a [`Control::PathResponse`] with the same nonce on the same link.
    PathChallenge(u64),
    /// The answer to a [`Control::PathChallenge`].
    PathResponse(u64),
    /// Reports the status of a link.
    LinkStatus(LinkIndex, LinkStatus),
    /// Ends the connection.
    Close {
        /// Why the connection ends.
        reason: CloseReason,
        /// The operation that caused the close, or 0.
        operation: OperationNumber,
        /// Data of the application, at most [`CLOSE_PRIVATE_BYTES_MAX`] bytes.
        private_data: &'a [u8],
    },
    /// The answer to a Close.
    CloseAck,
    /// Announces the address of one more link of this message's sender.
    Address(PeerAddr),
    /// A bit mask of link indices: the sender has these links, and the peer has answered on them.
    /// Asks for an acknowledgement.
    Links(u16),
    /// Reports that the sender cannot retransmit the answer to this read, because the memory of the
    /// answer is gone.
    Gone(OperationNumber),
    /// Reports that no receive is posted for this message, and that the sender of the report has
    /// refused the frames of the message.
    NotReady(MessageNumber),
    /// Reports that receives are posted again, after [`Control::NotReady`].
    Ready,
}

impl Control<'_> {
    /// Writes the message to the start of `out` and returns its length in bytes.
    ///
    /// # Panics
    ///
    /// Panics if private data is longer than [`CLOSE_PRIVATE_BYTES_MAX`].
    pub fn encode(&self, out: &mut [u8; CONTROL_BYTES_MAX]) -> usize {
        let (header, body) = out.split_at_mut(HEADER_BYTES);
        let (kind, length) = match self {
            Self::Padding => (0, 0),
            Self::Ping => (1, 0),
            Self::PathChallenge(nonce) => (2, fill(body, &nonce.to_le_bytes(), &[])),
            Self::PathResponse(nonce) => (3, fill(body, &nonce.to_le_bytes(), &[])),
            Self::LinkStatus(link, status) => (4, fill(body, &[link.0, *status as u8], &[])),
            Self::Close { reason, operation, private_data } => {
                let mut close = [0; CLOSE_BYTES];
                put!(&mut close, fields::CLOSE_REASON, reason.code().to_le_bytes());
                put!(&mut close, fields::CLOSE_OPERATION, operation.0.to_le_bytes());
                (5, fill(body, &close, private_data))
            }
            Self::CloseAck => (6, 0),
            Self::Address(address) => (7, fill(body, &address.0, &[])),
            Self::Links(links) => (8, fill(body, &links.to_le_bytes(), &[])),
            Self::Gone(operation) => (9, fill(body, &operation.0.to_le_bytes(), &[])),
            Self::NotReady(message) => (10, fill(body, &message.0.to_le_bytes(), &[])),
            Self::Ready => (11, 0),
        };
        header.copy_from_slice(&[kind, length as u8]);
        HEADER_BYTES + length
    }
}

/// Writes `fields` and then `tail` to the start of `body`. Returns their total length in bytes.
fn fill(body: &mut [u8], fields: &[u8], tail: &[u8]) -> usize {
    let length = fields.len() + tail.len();
    body[..fields.len()].copy_from_slice(fields);
    body[fields.len()..length].copy_from_slice(tail);
    length
}

/// Returns an iterator over the messages in the payload of a control frame. The iterator skips
/// messages of unknown type and ends after the first error.
pub const fn control_messages(payload: &[u8]) -> ControlMessages<'_> {
    ControlMessages { rest: payload }
}

/// Iterator of [`control_messages`].
#[derive(Clone, Debug)]
pub struct ControlMessages<'a> {
    rest: &'a [u8],
}

impl<'a> ControlMessages<'a> {
    //= protocol.md: control.1, control.2
    /// Decodes the next message; `None` if its type is unknown.
    fn message(&mut self) -> Result<Option<Control<'a>>, DecodeError> {
        let found = self.rest.len();
        let Some((header, rest)) = self.rest.split_first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::Truncated {
                part: "control message",
                needed: HEADER_BYTES,
                found,
            });
        };
        let length = usize::from(u8::from_le_bytes(get!(header, fields::CONTROL_LENGTH)));
        let Some((body, rest)) = rest.split_at_checked(length) else {
            return Err(DecodeError::Truncated {
                part: "body of a control message",
                needed: length,
                found: rest.len(),
            });
        };
        self.rest = rest;
        let kind = u8::from_le_bytes(get!(header, fields::CONTROL_TYPE));
        Ok(Some(match kind {
            0 => Control::Padding,
            1 => exact("Ping", body).map(|[]| Control::Ping)?,
            2 => Control::PathChallenge(nonce("PathChallenge", body)?),
            3 => Control::PathResponse(nonce("PathResponse", body)?),
            4 => link_status(body)?,
            5 => close(body)?,
            6 => exact("CloseAck", body).map(|[]| Control::CloseAck)?,
            7 => exact::<ADDRESS_BYTES>("Address", body)
                .and_then(decode_address)
                .map(Control::Address)?,
            8 => exact::<LINKS_BYTES>("Links", body)
                .map(|body| Control::Links(u16::from_le_bytes(get!(body, fields::LINKS))))?,
            9 => exact::<GONE_BYTES>("Gone", body)
                .map(|body| u32::from_le_bytes(get!(body, fields::GONE_OPERATION)))
                .map(|operation| Control::Gone(OperationNumber(operation)))?,
            10 => exact::<NOT_READY_BYTES>("NotReady", body)
                .map(|body| u32::from_le_bytes(get!(body, fields::NOT_READY_MESSAGE)))
                .map(|message| Control::NotReady(MessageNumber(message)))?,
            11 => exact("Ready", body).map(|[]| Control::Ready)?,
            _ => return Ok(None),
        }))
    }
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = Result<Control<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.message() {
                Ok(None) => {}
                Ok(Some(message)) => return Some(Ok(message)),
                Err(error) => {
                    self.rest = &[];
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Returns the body as an array. Returns an error if the body does not have the length `N`.
fn exact<'a, const N: usize>(
    message: &'static str,
    body: &'a [u8],
) -> Result<&'a [u8; N], DecodeError> {
    body.try_into().map_err(|_| DecodeError::ControlLength { message, found: body.len() })
}

fn nonce(message: &'static str, body: &[u8]) -> Result<u64, DecodeError> {
    let body = exact::<PATH_BYTES>(message, body)?;
    Ok(u64::from_le_bytes(get!(body, fields::NONCE)))
}

fn link_status<'a>(body: &[u8]) -> Result<Control<'a>, DecodeError> {
    let body = exact::<LINK_STATUS_BYTES>("LinkStatus", body)?;
    let link = ranged(&fields::STATUS_LINK, u8::from_le_bytes(get!(body, fields::STATUS_LINK)))?;
    let status = match u8::from_le_bytes(get!(body, fields::STATUS)) {
        1 => LinkStatus::Available,
        2 => LinkStatus::Backup,
        3 => LinkStatus::Down,
        4 => LinkStatus::Removed,
        other => {
            return Err(DecodeError::Range { field: fields::STATUS.name, value: other.into() });
        }
    };
    Ok(Control::LinkStatus(LinkIndex(link), status))
}

fn close(body: &[u8]) -> Result<Control<'_>, DecodeError> {
    let length_error = DecodeError::ControlLength { message: "Close", found: body.len() };
    let (close, private_data) = body.split_first_chunk::<CLOSE_BYTES>().ok_or(length_error)?;
    if private_data.len() > CLOSE_PRIVATE_BYTES_MAX {
        return Err(length_error);
    }
    Ok(Control::Close {
        reason: CloseReason::from_code(u16::from_le_bytes(get!(close, fields::CLOSE_REASON))),
        operation: OperationNumber(u32::from_le_bytes(get!(close, fields::CLOSE_OPERATION))),
        private_data,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::generate::control;

    proptest! {
        #[test]
        fn decoded_messages_keep_their_order(messages in vec(control(), 0..6)) {
            let mut payload = Vec::new();
            for message in &messages {
                payload.extend(encoded(&message.borrow()));
            }
            let decoded: Result<Vec<_>, _> = control_messages(&payload).collect();
            let expected: Vec<_> = messages.iter().map(|message| message.borrow()).collect();
            prop_assert_eq!(decoded.unwrap(), expected);
        }

        #[test]
        fn no_bytes_make_the_iterator_panic_or_loop_forever(payload in vec(any::<u8>(), 0..300)) {
            let items: Vec<_> = control_messages(&payload).collect();
            prop_assert!(items.len() <= payload.len() / HEADER_BYTES + 1);
            let errors = items.iter().filter(|item| item.is_err()).count();
            prop_assert!(errors == 0 || errors == 1 && items.last().is_some_and(Result::is_err));
        }
    }

    //= protocol.md: control.2
    #[test]
    fn unknown_types_are_skipped() {
        let payload = [200, 3, 1, 2, 3, 1, 0, 255, 0];
        let messages: Vec<_> = control_messages(&payload).collect();
        assert_eq!(messages, [Ok(Control::Ping)]);
    }

    //= protocol.md: control.1
    #[test]
    fn bodies_of_wrong_length_are_refused() {
        for (payload, message, found) in [
            (&[1, 1, 0][..], "Ping", 1),
            (&[2, 7, 0, 0, 0, 0, 0, 0, 0], "PathChallenge", 7),
            (&[4, 1, 0], "LinkStatus", 1),
            (&[5, 5, 0, 0, 0, 0, 0], "Close", 5),
            (&[6, 1, 0], "CloseAck", 1),
            (&[7, 2, 0, 0], "Address", 2),
            (&[8, 1, 0], "Links", 1),
            (&[9, 1, 0], "Gone", 1),
            (&[10, 5, 0, 0, 0, 0, 0], "NotReady", 5),
            (&[11, 1, 0], "Ready", 1),
        ] {
            let messages: Vec<_> = control_messages(payload).collect();
            assert_eq!(messages, [Err(DecodeError::ControlLength { message, found })]);
        }
        let mut close = [0; HEADER_BYTES + CLOSE_BYTES + CLOSE_PRIVATE_BYTES_MAX + 1];
        close[..2].copy_from_slice(&[5, (CLOSE_BYTES + CLOSE_PRIVATE_BYTES_MAX + 1) as u8]);
        let error = DecodeError::ControlLength { message: "Close", found: 135 };
        assert_eq!(control_messages(&close).next(), Some(Err(error)));
        let cut = DecodeError::Truncated { part: "body of a control message", needed: 8, found: 1 };
        assert_eq!(control_messages(&[2, 8, 0]).next(), Some(Err(cut)));
    }

    #[test]
    fn the_codec_agrees_with_the_table_of_messages() {
        for layout in fields::CONTROL_LAYOUTS {
            let fields_bytes = layout.body.map_or(0, layout_end);
            for length in 0..=u8::MAX {
                let mut payload = [0; HEADER_BYTES + u8::MAX as usize];
                payload[..2].copy_from_slice(&[layout.control, length]);
                let end = HEADER_BYTES + usize::from(length);
                let refused = matches!(
                    control_messages(&payload[..end]).next(),
                    Some(Err(DecodeError::ControlLength { .. }))
                );
                let fits = (fields_bytes..=fields_bytes + layout.tail_bytes_max)
                    .contains(&usize::from(length));
                assert_eq!(refused, !fits, "{layout:?} {length}");
            }
        }
    }

    fn encoded(message: &Control<'_>) -> Vec<u8> {
        let mut out = [0; CONTROL_BYTES_MAX];
        let length = message.encode(&mut out);
        out[..length].to_vec()
    }
}
