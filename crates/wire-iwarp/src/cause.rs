//! Why a connection is terminated: the error codes of a Terminate message (RFC 5040 section 4.8,
//! RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8).

/// The layer that found the error.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Layer {
    /// RDMAP, layer 0.
    Rdmap,
    /// DDP, layer 1.
    Ddp,
    /// The layer below, which is MPA: layer 2.
    Mpa,
}

impl Layer {
    /// Returns the number of the layer.
    pub const fn number(self) -> u8 {
        match self {
            Self::Rdmap => 0,
            Self::Ddp => 1,
            Self::Mpa => 2,
        }
    }
}

/// An error code as a Terminate has it, known or unknown.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ErrorCode {
    /// The layer that found the error, 0 to 15. Values above 2 are reserved.
    pub layer: u8,
    /// The type of the error, 0 to 15. Its meaning depends on the layer.
    pub error_type: u8,
    /// The error. Its meaning depends on layer and type.
    pub code: u8,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = ($layer:literal, $error_type:literal, $code:literal), $text:literal;)*) => {
        /// Why a connection is terminated.
        ///
        /// The names begin with the layer: `Protection` and `Operation` are RDMAP's remote
        /// protection errors and remote operation errors, `Tagged` and `Untagged` are DDP's errors
        /// with tagged and untagged buffers.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[non_exhaustive]
        pub enum Cause {
            $($(#[$doc])* $name,)*
        }

        impl Cause {
            /// All causes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the error code of this cause.
            pub const fn error_code(self) -> ErrorCode {
                let (layer, error_type, code) = match self {
                    $(Self::$name => ($layer, $error_type, $code),)*
                };
                ErrorCode { layer, error_type, code }
            }

            /// Returns the words of the RFC for this cause.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

causes! {
    /// RDMAP cannot go on, for a reason of its own. RFC 5040 permits any code here.
    RdmapCatastrophic = (0, 0, 0x00), "RDMAP: local catastrophic error";
    /// The STag names no buffer.
    ProtectionStag = (0, 1, 0x00), "RDMAP: invalid STag";
    /// The access exceeds the buffer.
    ProtectionBounds = (0, 1, 0x01), "RDMAP: base or bounds violation";
    /// The buffer does not permit the access.
    ProtectionAccess = (0, 1, 0x02), "RDMAP: access rights violation";
    /// The buffer belongs to another stream.
    ProtectionStream = (0, 1, 0x03), "RDMAP: STag not associated with the stream";
    /// The tagged offset exceeds 2^64.
    ProtectionWrap = (0, 1, 0x04), "RDMAP: tagged offset wraps";
    /// The STag of a message with invalidate cannot be invalidated.
    ProtectionInvalidate = (0, 1, 0x09), "RDMAP: protection error, STag cannot be invalidated";
    /// Another protection error.
    ProtectionUnspecified = (0, 1, 0xff), "RDMAP: remote protection error";
    /// The RDMAP version is not supported.
    OperationVersion = (0, 2, 0x05), "RDMAP: invalid RDMAP version";
    /// The opcode is unknown, or not expected now.
    OperationOpcode = (0, 2, 0x06), "RDMAP: unexpected opcode";
    /// The stream cannot go on.
    OperationStream = (0, 2, 0x07), "RDMAP: catastrophic error of the stream";
    /// The endpoint cannot go on.
    OperationGlobal = (0, 2, 0x08), "RDMAP: catastrophic error of the endpoint";
    /// The STag of a message with invalidate cannot be invalidated.
    OperationInvalidate = (0, 2, 0x09), "RDMAP: operation error, STag cannot be invalidated";
    /// Another error of an operation.
    OperationUnspecified = (0, 2, 0xff), "RDMAP: remote operation error";
    /// DDP cannot go on, for a reason of its own.
    DdpCatastrophic = (1, 0, 0x00), "DDP: local catastrophic error";
    /// The STag names no buffer.
    TaggedStag = (1, 1, 0x00), "DDP: invalid STag";
    /// The payload exceeds the buffer.
    TaggedBounds = (1, 1, 0x01), "DDP: base or bounds violation";
    /// The buffer belongs to another stream.
    TaggedStream = (1, 1, 0x02), "DDP: STag not associated with the stream";
    /// The tagged offset exceeds 2^64.
    TaggedWrap = (1, 1, 0x03), "DDP: tagged offset wraps";
    /// The DDP version of a tagged segment is not supported.
    TaggedVersion = (1, 1, 0x04), "DDP: invalid DDP version in a tagged segment";
    /// The queue number is not in use.
    UntaggedQueueNumber = (1, 2, 0x01), "DDP: invalid queue number";
    /// No receive is posted for the message.
    UntaggedNoBuffer = (1, 2, 0x02), "DDP: invalid MSN, no buffer available";
    /// The message sequence number is not the next one.
    UntaggedMsn = (1, 2, 0x03), "DDP: invalid MSN, out of range";
    /// The message offset does not continue the message.
    UntaggedMo = (1, 2, 0x04), "DDP: invalid MO";
    /// The message exceeds the receive.
    UntaggedTooLong = (1, 2, 0x05), "DDP: message too long for the buffer";
    /// The DDP version of an untagged segment is not supported.
    UntaggedVersion = (1, 2, 0x06), "DDP: invalid DDP version in an untagged segment";
    /// The TCP connection has ended.
    MpaClosed = (2, 0, 0x01), "MPA: TCP connection closed, terminated or lost";
    /// The CRC of an FPDU is wrong.
    MpaCrc = (2, 0, 0x02), "MPA: wrong CRC";
    /// A marker and the length fields disagree.
    MpaMarkerAndLength = (2, 0, 0x03), "MPA: marker and length field disagree";
    /// The set-up frame is malformed.
    MpaInvalidSetup = (2, 0, 0x04), "MPA: invalid request or reply frame";
    /// MPA cannot go on, for a reason of its own.
    MpaCatastrophic = (2, 0, 0x05), "MPA: local catastrophic error";
    /// The peer wants more outstanding reads than this end answers.
    MpaInsufficientIrd = (2, 0, 0x06), "MPA: insufficient IRD resources";
    /// The responder wants none of the RTR messages that the initiator offers.
    MpaNoMatchingRtr = (2, 0, 0x07), "MPA: no matching RTR option";
}

impl Cause {
    /// Returns the section of the RFC whose rule a peer has broken that causes this error. For
    /// errors that no rule explains, it is the section that lists them.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::ProtectionStag
            | Self::ProtectionBounds
            | Self::ProtectionAccess
            | Self::ProtectionStream
            | Self::ProtectionWrap
            | Self::ProtectionUnspecified => "RFC 5040 section 7.2",
            Self::ProtectionInvalidate | Self::OperationInvalidate => "RFC 5040 section 5.3",
            Self::OperationVersion | Self::OperationOpcode => "RFC 5040 section 4.1",
            Self::RdmapCatastrophic
            | Self::OperationStream
            | Self::OperationGlobal
            | Self::OperationUnspecified => "RFC 5040 section 4.8",
            Self::TaggedStag
            | Self::TaggedBounds
            | Self::TaggedStream
            | Self::TaggedWrap
            | Self::UntaggedQueueNumber
            | Self::UntaggedNoBuffer
            | Self::UntaggedMsn
            | Self::UntaggedMo
            | Self::UntaggedTooLong => "RFC 5041 section 7.1",
            Self::TaggedVersion | Self::UntaggedVersion => "RFC 5041 section 4.1",
            Self::DdpCatastrophic => "RFC 5041 section 7.2",
            Self::MpaCrc => "RFC 5044 section 4.4",
            Self::MpaMarkerAndLength => "RFC 5044 section 4.3",
            Self::MpaInvalidSetup => "RFC 5044 section 7.1.1",
            Self::MpaClosed | Self::MpaCatastrophic => "RFC 5044 section 8",
            Self::MpaInsufficientIrd | Self::MpaNoMatchingRtr => "RFC 6581 section 9",
        }
    }

    /// Returns the layer that finds this error.
    pub const fn layer(self) -> Layer {
        match self.error_code().layer {
            0 => Layer::Rdmap,
            1 => Layer::Ddp,
            _ => Layer::Mpa,
        }
    }
}

impl ErrorCode {
    /// Returns the cause with this code, or `None` if no RFC assigns it. Every code of a local
    /// catastrophic error of RDMAP or DDP is that cause.
    pub fn cause(self) -> Option<Cause> {
        let own = match (self.layer, self.error_type) {
            (0 | 1, 0) => Self { code: 0, ..self },
            _ => self,
        };
        Cause::ALL.iter().copied().find(|cause| cause.error_code() == own)
    }

    /// Returns whether the RFCs assign the type in its layer.
    pub const fn has_known_type(self) -> bool {
        // Type 3 of DDP is reserved for the layer below.
        matches!((self.layer, self.error_type), (0, 0..=2) | (1, 0..=3) | (2, 0))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_cause_has_a_code_and_a_text_of_its_own() {
        let mut codes = HashSet::new();
        let mut texts = HashSet::new();
        for cause in Cause::ALL {
            let code = cause.error_code();
            assert_eq!(code.cause(), Some(*cause));
            assert!(code.has_known_type());
            assert_eq!(code.layer, cause.layer().number());
            assert!(codes.insert(code) && texts.insert(cause.text()));
            let rfcs: &[&str] = match cause.layer() {
                Layer::Rdmap => &["RFC 5040 section "],
                Layer::Ddp => &["RFC 5041 section "],
                Layer::Mpa => &["RFC 5044 section ", "RFC 6581 section "],
            };
            assert!(rfcs.iter().any(|rfc| cause.rule().starts_with(rfc)), "{cause:?}");
        }
    }

    #[test]
    fn codes_that_no_rfc_assigns_have_no_cause() {
        for (layer, error_type, code) in [(0, 1, 5), (0, 3, 0), (1, 2, 0), (2, 0, 0), (3, 0, 0)] {
            assert_eq!(ErrorCode { layer, error_type, code }.cause(), None);
        }
        let any = ErrorCode { layer: 0, error_type: 0, code: 0x77 };
        assert_eq!(any.cause(), Some(Cause::RdmapCatastrophic));
    }
}
