use proptest::prelude::*;

use super::*;

const OURS: Framing =
    Framing { station: [2, 0, 0, 0, 0, 1], ethertype: 0x88b5, vlan: None, port: 7 };
const PEER: Framing =
    Framing { station: [2, 0, 0, 0, 0, 2], ethertype: 0x88b5, vlan: None, port: 8 };

/// Returns an Ethernet frame from `from` to [`OURS`] with this content.
fn frame(from: &Framing, kind: EnvelopeKind, content: &[u8]) -> Vec<u8> {
    let mut slot = vec![0; from.header_bytes()];
    slot.extend_from_slice(content);
    assert!(from.put(kind, (OURS.station, OURS.port), &mut slot));
    slot
}

fn tagged(framing: Framing, vlan: u16) -> Framing {
    Framing { vlan: Some(vlan), ..framing }
}

proptest! {
    #[test]
    fn written_content_arrives_whatever_padding_follows(
        content in proptest::collection::vec(any::<u8>(), 0..2000),
        padding in proptest::collection::vec(any::<u8>(), 0..46),
        vlan in prop_oneof![Just(None), (1..=VLAN_MAX).prop_map(Some)],
    ) {
        let (ours, peer) = (Framing { vlan, ..OURS }, Framing { vlan, ..PEER });
        let mut bytes = frame(&peer, EnvelopeKind::Frame, &content);
        bytes.extend_from_slice(&padding);
        let from = PeerAddr::mac(PEER.station, PEER.port);
        let mut expected = content.clone();
        prop_assert_eq!(
            ours.check(&mut bytes, None),
            Ok(Arrival::Frame { from, bytes: &mut expected })
        );
    }

    #[test]
    fn any_bytes_are_accepted_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        fuzz_ethernet_frame(&mut bytes);
    }

    //= protocol.md: envelope.1
    #[test]
    fn a_changed_byte_is_never_delivered(
        content in proptest::collection::vec(any::<u8>(), 0..300),
        position: prop::sample::Index, flip in 1..=255_u8,
    ) {
        let mut bytes = frame(&PEER, EnvelopeKind::Frame, &content);
        // Do not change the Ethernet header, because only Ethernet's own check sequence protects
        // it.
        let index = ETHERNET_BYTES + position.index(bytes.len() - ETHERNET_BYTES);
        bytes[index] ^= flip;
        prop_assert!(OURS.check(&mut bytes, None).is_err());
    }
}

//= protocol.md: envelope.1
#[test]
fn frames_for_other_endpoints_are_distinguished_from_broken_ones() {
    let whole = frame(&PEER, EnvelopeKind::Frame, b"content");
    let check = |ours: &Framing, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        ours.check(&mut bytes, None).err()
    };
    let nothing = |_: &mut Vec<u8>| {};
    assert_eq!(check(&OURS, &nothing), None);
    assert_eq!(check(&Framing { port: 9, ..OURS }, &nothing), Some(Refused::NotOurs));
    assert_eq!(check(&Framing { station: [4; 6], ..OURS }, &nothing), Some(Refused::NotOurs));
    assert_eq!(check(&Framing { ethertype: 0x88b6, ..OURS }, &nothing), Some(Refused::NotOurs));
    assert_eq!(check(&tagged(OURS, 5), &nothing), Some(Refused::WrongVlan));
    assert_eq!(check(&OURS, &|bytes| bytes.truncate(13)), Some(Refused::Truncated));
    assert_eq!(check(&OURS, &|bytes| bytes.truncate(20)), Some(Refused::Truncated));
    assert_eq!(check(&OURS, &|bytes| bytes.truncate(30)), Some(Refused::Truncated));
    assert_eq!(check(&OURS, &|bytes| bytes[14] = 2), Some(Refused::Foreign));
    assert_eq!(check(&OURS, &|bytes| bytes[15] = 4), Some(Refused::Foreign));
    assert_eq!(check(&OURS, &|bytes| bytes[27] ^= 1), Some(Refused::Checksum));
    assert_eq!(
        check(&OURS, &|bytes| bytes[6..12].copy_from_slice(&OURS.station)),
        Some(Refused::OwnStation)
    );
    assert_eq!(check(&OURS, &|bytes| bytes[..6].fill(0xff)), Some(Refused::Foreign));
}

//= protocol.md: envelope.3
#[test]
fn the_vlan_tag_is_checked_wherever_it_was_stripped() {
    let (ours, peer) = (tagged(OURS, 100), tagged(PEER, 100));
    let mut bytes = frame(&peer, EnvelopeKind::Discover, b"");
    let from = (PEER.station, PEER.port);
    assert_eq!(ours.check(&mut bytes, None), Ok(Arrival::Discover { from }));
    assert_eq!(OURS.check(&mut bytes, None), Err(Refused::WrongVlan));
    assert_eq!(tagged(OURS, 101).check(&mut bytes, None), Err(Refused::WrongVlan));

    let mut bytes = frame(&PEER, EnvelopeKind::Here, b"");
    let (priority, vlan) = (0x6000, 100);
    assert_eq!(ours.check(&mut bytes, Some(priority | vlan)), Ok(Arrival::Here { from }));
    assert_eq!(ours.check(&mut bytes, Some(101)), Err(Refused::WrongVlan));
    assert_eq!(ours.check(&mut bytes, None), Err(Refused::WrongVlan));
    assert_eq!(OURS.check(&mut bytes, Some(priority)), Ok(Arrival::Here { from }));
}

//= protocol.md: envelope.4
#[test]
fn a_discovery_is_broadcast_to_all_peers_with_the_port() {
    let mut bytes = vec![0; PEER.header_bytes()];
    assert!(PEER.put(EnvelopeKind::Discover, (BROADCAST, OURS.port), &mut bytes));
    let from = (PEER.station, PEER.port);
    assert_eq!(OURS.check(&mut bytes, None), Ok(Arrival::Discover { from }));
    let elsewhere = Framing { port: 1, ..OURS };
    assert_eq!(elsewhere.check(&mut bytes, None), Err(Refused::NotOurs));
}

#[test]
fn slot_without_room_for_the_headers_is_refused() {
    assert!(!PEER.put(EnvelopeKind::Frame, (OURS.station, 1), &mut [0; 25]));
    assert!(!PEER.put(EnvelopeKind::Frame, (OURS.station, 1), &mut vec![0; 26 + 65_536]));
    assert!(PEER.put(EnvelopeKind::Frame, (OURS.station, 1), &mut vec![0; 26 + 65_535]));
}
