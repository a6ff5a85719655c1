//! The content of the Close that this end sends.

use wire_edge::{CLOSE_PRIVATE_BYTES_MAX, CloseReason, Control, OperationNumber};

/// The content of the Close that this end sends.
#[derive(Debug)]
pub(crate) struct CloseNotice {
    reason: CloseReason,
    /// The operation that caused the close; 0 if no operation caused it.
    operation: OperationNumber,
    private_data: Vec<u8>,
}

impl Default for CloseNotice {
    fn default() -> Self {
        let (reason, operation) = (CloseReason::Finished, OperationNumber(0));
        Self { reason, operation, private_data: Vec::new() }
    }
}

impl CloseNotice {
    /// Stores private data of the application. Drops the bytes that do not fit into a frame.
    pub(crate) fn attach(&mut self, private_data: &[u8]) {
        let kept = private_data.len().min(CLOSE_PRIVATE_BYTES_MAX);
        self.private_data = private_data.get(..kept).unwrap_or_default().to_vec();
    }

    /// Sets the reason of the close and the operation that caused it.
    pub(crate) const fn begin(&mut self, (reason, operation): (CloseReason, OperationNumber)) {
        (self.reason, self.operation) = (reason, operation);
    }

    /// Returns the control message.
    pub(crate) fn control(&self) -> Control<'_> {
        let Self { reason, operation, private_data } = self;
        Control::Close { reason: *reason, operation: *operation, private_data }
    }

    /// Returns whether the Close has no private data.
    pub(crate) const fn is_empty(&self) -> bool {
        self.private_data.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_truncated_to_its_frame() {
        let mut notice = CloseNotice::default();
        notice.attach(&[7; CLOSE_PRIVATE_BYTES_MAX + 1]);
        notice.begin((CloseReason::Application, OperationNumber(3)));
        let Control::Close { reason, operation, private_data } = notice.control() else {
            panic!("a Close says Close");
        };
        assert_eq!((reason, operation), (CloseReason::Application, OperationNumber(3)));
        assert_eq!(private_data, [7; CLOSE_PRIVATE_BYTES_MAX]);
    }
}
