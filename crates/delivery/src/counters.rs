//! Counters of endpoints and links. Every report lists the counters declared here.

/// Declares a struct of `u64` counters. Each counter has a name and one line of documentation.
/// Reports contain the same name and the same line, so they always match the field.
macro_rules! counters {
    (
        $(#[doc = $struct_doc:literal])*
        $name:ident { $(#[doc = $doc:literal] $field:ident,)* }
    ) => {
        $(#[doc = $struct_doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $(#[doc = $doc] pub $field: u64,)*
        }

        crate::pack_fields!($name { $($field),* });

        impl $name {
            /// Name and explanation of each counter, in the order of [`Self::iter`].
            pub const DESCRIPTIONS: &[(&str, &str)] =
                &[$((stringify!($field), $doc.trim_ascii()),)*];

            /// Adds each counter of `other` to the counter of that name here, modulo 2^64.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }

            /// Returns the growth of each counter since `earlier`, modulo 2^64.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.wrapping_sub(earlier.$field),)* }
            }

            /// Returns an iterator over name, value and explanation of each counter.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                let values = [$(self.$field,)*];
                let described = Self::DESCRIPTIONS.iter().zip(values);
                described.map(|(&(name, explanation), value)| (name, value, explanation))
            }
        }
    };
}

counters! {
    /// Traffic of one link of one connection.
    LinkCounters {
        /// Frames sent, of every kind.
        frames_sent,
        /// Frames received for a known connection with the right epoch.
        frames_received,
        /// Bytes of edge frames sent, headers included.
        bytes_sent,
        /// Bytes of edge frames received, headers included.
        bytes_received,
        /// Frames sent that carry bytes of an operation, retransmissions included.
        data_frames_sent,
        /// Frames received that carry bytes of an operation.
        data_frames_received,
        /// Bytes of operations sent, retransmissions included.
        payload_bytes_sent,
        /// Bytes of operations accepted for the first time.
        payload_bytes_received,
        /// Frames sent only to acknowledge.
        explicit_acks_sent,
        /// Frames received that only acknowledge.
        explicit_acks_received,
        /// Acknowledgements sent on frames that carry something else.
        piggybacked_acks_sent,
        /// Acknowledgements received on frames that carry something else.
        piggybacked_acks_received,
        /// Control frames sent.
        control_frames_sent,
        /// Control frames received.
        control_frames_received,
        /// Frames sent that repeat bytes sent before, on this link or another.
        retransmissions,
        /// Packets declared lost.
        packets_lost,
        /// Packets declared lost and acknowledged later.
        spurious_losses,
        /// Timeouts without any acknowledgement after which a probe was sent.
        probe_timeouts,
        /// Probes of the path MTU sent.
        mtu_probes_sent,
        /// Probes of the path MTU that were lost.
        mtu_probes_lost,
        /// Challenges sent to find out whether the path works.
        path_challenges_sent,
        /// Number of times that the link was suspected, so that it got no new data.
        suspicions,
        /// Number of times that the link failed.
        failures,
        /// Turns in which data waited, and the link had room for a full frame but got no frame.
        idle_with_data,
        /// Frames received after a frame that was sent later on the same link.
        out_of_order,
        /// Frames received with a congestion mark.
        congestion_marked,
        /// Frames dropped: their packet number had already arrived.
        dropped_duplicate,
        /// Frames dropped: their packet number is too old to show whether they arrived before.
        dropped_too_old,
        /// Frames dropped: the sender cannot have reached their packet number yet.
        dropped_implausible,
        /// Frames dropped: their content after the common header is malformed.
        dropped_decode,
        /// Frames dropped: they belong to an earlier epoch of the connection.
        dropped_epoch,
        /// Frames dropped: there is no room or no receive for their fragment now.
        dropped_no_room,
        /// Frames dropped: their operation is outside the window of operations.
        dropped_outside_window,
        /// Frames acknowledged but not placed: their bytes had already arrived.
        not_placed,
    }
}

counters! {
    /// Counters of an endpoint that belong to no link of an established connection.
    EndpointCounters {
        /// Frames dropped: too short, or not of the protocol.
        malformed,
        /// Frames dropped: their kind or version is unknown to this endpoint.
        unsupported,
        /// Connection frames for a connection that does not exist.
        unknown_connection,
        /// Connection frames with an earlier epoch of their connection.
        wrong_epoch,
        /// Connection frames from an address that is no link of the peer.
        wrong_address,
        /// Connections requested by this endpoint.
        handshakes_started,
        /// Connection requests received, repetitions included.
        hellos_received,
        /// Connections established, requested by either end.
        handshakes_completed,
        /// Connection requests rejected by this endpoint.
        handshakes_refused,
        /// Connection attempts that failed.
        handshakes_failed,
        /// Cookies sent to strangers, before anything is allocated for them.
        retries_sent,
        /// Cookies dropped: older than their lifetime.
        cookies_expired,
        /// Cookies dropped: not issued here, or issued to another address.
        cookies_forged,
        /// Resets sent to peers whose frames name a connection that does not exist.
        resets_sent,
        /// Resets received that ended a connection.
        resets_accepted,
        /// Resets received that match no frame that was sent.
        resets_ignored,
        /// Network reports that quote no frame that was sent.
        reports_ignored,
        /// Answers suppressed by a rate limit.
        rate_limited,
        /// Connections closed by the peer.
        closed_by_peer,
        /// Connections closed by this endpoint.
        closed_here,
        /// Connections ended because no link reached the peer.
        unreachable,
        /// Connections ended because the peer broke the protocol or used memory without a right to it.
        violations,
        /// Datagrams handed to a link.
        datagrams_sent,
        /// Datagrams dropped here: the receiving process on this host reads nothing.
        datagrams_not_sent,
        /// Datagrams placed in a receive. A datagram to a group counts once for each receive.
        datagrams_received,
        /// Datagrams dropped: for a queue pair that is unknown or not in the group.
        datagrams_unknown,
        /// Datagrams dropped: the queue key differs from that of the queue pair.
        datagrams_wrong_key,
        /// Datagrams kept until a receive is posted.
        datagrams_kept,
        /// Datagrams dropped: no receive was posted in time, or the completion queue is overrun.
        datagrams_without_receive,
        /// Datagrams dropped: longer than the receive.
        datagrams_too_long,
    }
}

impl LinkCounters {
    /// Returns the number of frames received and then dropped, for all causes.
    pub const fn dropped(&self) -> u64 {
        self.dropped_duplicate
            + self.dropped_too_old
            + self.dropped_implausible
            + self.dropped_decode
            + self.dropped_epoch
            + self.dropped_no_room
            + self.dropped_outside_window
    }

    /// Returns the number of extra frames sent: explicit acknowledgements and retransmissions.
    /// Without losses, and with all acknowledgements on data frames, there are none.
    pub const fn extra_frames(&self) -> u64 {
        self.explicit_acks_sent + self.retransmissions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_once_with_its_value() {
        let counters = LinkCounters { frames_sent: 3, not_placed: 7, ..LinkCounters::default() };
        let listed: Vec<_> = counters.iter().collect();
        assert_eq!(listed[0], ("frames_sent", 3, "Frames sent, of every kind."));
        let fields = size_of::<LinkCounters>() / size_of::<u64>();
        assert_eq!(listed.len(), fields);
        assert_eq!(listed[fields - 1].0, "not_placed");
        assert_eq!(listed.iter().map(|(_, value, _)| value).sum::<u64>(), 10);
        assert_eq!(
            EndpointCounters::default().iter().count(),
            EndpointCounters::DESCRIPTIONS.len()
        );
    }

    #[test]
    fn adding_and_subtracting_cover_every_counter() {
        let one = LinkCounters { bytes_sent: 5, dropped_epoch: 2, ..LinkCounters::default() };
        let mut sum = one;
        sum.add(&one);
        assert_eq!((sum.bytes_sent, sum.dropped_epoch, sum.dropped()), (10, 4, 4));
        assert_eq!(sum.since(&one), one);
    }

    #[test]
    fn drops_are_the_counters_named_so() {
        let named =
            LinkCounters::DESCRIPTIONS.iter().filter(|(name, _)| name.starts_with("dropped"));
        assert_eq!(named.count(), 7);
    }
}
