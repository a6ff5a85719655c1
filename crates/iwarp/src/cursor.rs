//! Where a sender is in its messages.

use wire_iwarp::MarkerPosition;

/// Which message a sender is in the middle of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Active {
    /// None: the next FPDU begins a message.
    #[default]
    None,
    /// The own operation [`Cursor::own`].
    Own,
    /// The answer [`Cursor::answer`].
    Answer,
}

/// Where a sender is in its messages, at the boundary of two FPDUs.
///
/// Building FPDUs moves a copy. The stream takes over the copy behind the last FPDU that TCP has
/// taken, so that FPDUs that TCP did not take are built again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub(crate) active: Active,
    /// Payload bytes of the active message in earlier FPDUs.
    pub(crate) offset: u32,
    /// Number of the first operation that is not in earlier FPDUs completely.
    pub(crate) own: u64,
    /// Number of the first answer to a read that is not in earlier FPDUs completely.
    pub(crate) answer: u64,
    /// Message sequence number of the next Send.
    pub(crate) send_msn: u32,
    /// Message sequence number of the next Read Request.
    pub(crate) read_msn: u32,
    /// Number of Read Requests in earlier FPDUs, wrapping.
    pub(crate) reads: u32,
    /// Whether the RTR message is in an earlier FPDU.
    pub(crate) is_rtr_sent: bool,
    /// Number of nudges in earlier FPDUs.
    pub(crate) nudges: u32,
    /// Whether the Terminate message is in an earlier FPDU.
    pub(crate) is_terminated: bool,
    /// Whether an answer goes before the next own operation.
    pub(crate) is_answer_next: bool,
    pub(crate) markers: MarkerPosition,
}

impl Cursor {
    //= RFC 5041 section 4.3: the first message of each queue has the MSN 1
    /// Returns the position before the first FPDU.
    pub(crate) fn new() -> Self {
        Self {
            active: Active::None,
            offset: 0,
            own: 0,
            answer: 0,
            send_msn: 1,
            read_msn: 1,
            reads: 0,
            is_rtr_sent: false,
            nudges: 0,
            is_terminated: false,
            is_answer_next: false,
            markers: MarkerPosition::new(),
        }
    }
}
