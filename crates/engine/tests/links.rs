//! Tests of links that join, fail, come back, and differ in their properties (protocol.md §7).

mod pair;

use delivery::{LinkEvent, LinkId, LinkState};
use engine::{Closed, EngineConfig, Event};
use pair::{DELAY_NS, LinkPlan, Pair, address, caps};
use semantics::Request;
use wire_edge::{Header, decode};

const GIGABIT: LinkPlan = LinkPlan {
    frame_bytes_max: 1472,
    frame_bytes_safe: 1472,
    rate: Some(1_000_000_000),
    offloads: false,
};

fn states(pair: &Pair, host: usize) -> Vec<LinkState> {
    pair.hosts[host].info().paths.iter().map(|path| path.state).collect()
}

fn all_up(pair: &Pair) -> bool {
    (0..2).all(|host| states(pair, host).iter().all(|state| *state == LinkState::Up))
}

fn finish(pair: &mut Pair, bytes: u64, contexts: usize) {
    let mut done = Vec::new();
    pair.run_until(20_000_000_000, "the transfer is complete", |pair| {
        done.extend(pair.done(0));
        done.len() == contexts
    });
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    assert!(pair.same(bytes));
}

//= protocol.md: ack.8, ack.9
#[test]
fn a_transfer_survives_a_one_way_cut_of_a_link_and_the_link_recovers() {
    for cut_host in 0..2 {
        for cut_link in 0..2 {
            let mut pair = Pair::connected_with(&[GIGABIT; 2], EngineConfig::default());
            pair.fill(0, 4_000_000);
            pair.write(0, 0, 4_000_000, 1);
            pair.run_for(3_000_000);
            pair.set_up(cut_host, cut_link, false);
            let start = pair.now;
            println!("host {cut_host} is not heard on link {cut_link}");
            finish(&mut pair, 4_000_000, 1);
            // Over one gigabit link, the transfer takes 34 ms. If a link is cut during the
            // transfer, the transfer may take up to one second.
            assert!(pair.now.since_ns(start) < 1_000_000_000, "{cut_host} {cut_link}");
            pair.run_for(1_000_000_000);
            pair.set_up(cut_host, cut_link, true);
            pair.run_until(5_000_000_000, "the link is back", all_up);
            let before = pair.channels[0][cut_link].bytes;
            pair.write(0, 0, 4_000_000, 2);
            finish(&mut pair, 4_000_000, 1);
            assert!(
                pair.channels[0][cut_link].bytes - before > 1_000_000,
                "the restored link carries too little"
            );
            assert!(pair.hosts[0].closed().is_empty());
        }
    }
}

//= protocol.md: state.2, status.2
#[test]
fn down_and_up_events_disable_and_restore_a_link() {
    let mut pair = Pair::connected_with(&[GIGABIT; 2], EngineConfig::default());
    pair.fill(0, 4_000_000);
    pair.write(0, 0, 4_000_000, 1);
    pair.run_for(2_000_000);
    for (host, link) in [(0, 0), (1, 1), (1, 0), (0, 1)] {
        pair.hosts[host].engine.handle_link_event(pair.now, LinkId(link), LinkEvent::Down);
        pair.run_for(1_000_000);
        assert_eq!(states(&pair, host)[usize::from(link)], LinkState::Down);
        pair.run_for(40_000_000);
        let state = states(&pair, 1 - host)[usize::from(link)];
        assert!(matches!(state, LinkState::Down | LinkState::Probing), "{state:?}");
        let up = LinkEvent::Changed(caps(host, link, &GIGABIT));
        pair.hosts[host].engine.handle_link_event(pair.now, LinkId(link), up);
        pair.run_until(3_000_000_000, "the link is back", all_up);
    }
    finish(&mut pair, 4_000_000, 1);
}

//= protocol.md: state.4
#[test]
fn a_connection_survives_its_only_link_going_down_without_spinning() {
    let mut pair = Pair::connected(1);
    pair.fill(0, 1_000_000);
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), LinkEvent::Down);
    pair.write(0, 0, 1_000_000, 1);
    pair.turn(0);
    assert!(!pair.hosts[0].more, "the engine requests another turn for a link that is down");
    pair.run_for(2_000_000_000);
    let up = LinkEvent::Changed(caps(0, 0, &LinkPlan::default()));
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), up);
    finish(&mut pair, 1_000_000, 1);
    // Cut the link in the middle of a transfer. The sender detects the loss immediately.
    pair.write(0, 0, 1_000_000, 1);
    pair.turn(0);
    pair.wire.clear();
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), LinkEvent::Down);
    pair.run_for(2_000_000_000);
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), up);
    let start = pair.now;
    finish(&mut pair, 1_000_000, 1);
    assert!(pair.now.since_ns(start) < 20_000_000, "{} ns", pair.now.since_ns(start));
}

//= protocol.md: remove.1, index.2
#[test]
fn links_are_added_and_removed_repeatedly_under_load() {
    let plans = [GIGABIT; 3];
    let mut pair = Pair::connected_with(&plans, EngineConfig::default());
    pair.fill(0, 4_000_000);
    let handles = pair.hosts.each_ref().map(|host| host.connection.unwrap());
    let mut posted = 0;
    for round in 0..24_usize {
        if posted < 20 {
            posted += 1;
            pair.write(0, 0, 4_000_000, posted);
        }
        let host = round / 2 % 2;
        if round % 2 == 0 {
            let paths = pair.hosts[host].info().paths;
            let last = paths.last().unwrap();
            let link = last.link;
            pair.hosts[host].engine.remove_path(handles[host], last.index).unwrap();
            pair.run_for(10_000_000);
            assert!(pair.hosts[1 - host].info().paths.iter().all(|path| path.link != link));
            assert_eq!(pair.hosts[host].info().paths.len(), 2);
        } else {
            let used: Vec<_> = pair.hosts[host].info().paths.iter().map(|p| p.link).collect();
            let link = (0..3).map(LinkId).find(|link| !used.contains(link)).unwrap();
            let peer = address(1 - host, link.0);
            pair.hosts[host].engine.add_path(pair.now, handles[host], link, peer).unwrap();
            pair.run_until(3_000_000_000, "the link joins", |pair| {
                all_up(pair) && pair.hosts.iter().all(|host| host.info().paths.len() == 3)
            });
        }
    }
    finish(&mut pair, 4_000_000, posted as usize);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    pair.run_for(1_000_000_000);
    pair.assert_idle();
}

#[test]
fn the_handshake_link_may_go_down_before_the_acceptance_is_confirmed() {
    let mut pair = Pair::new(2);
    pair.hosts[1].engine.listen(0);
    // The first link carries only handshake frames. So no frame on this link shows the responder
    // that its Accept has arrived.
    pair.filter = Box::new(|_, flight| {
        let kind = wire_edge::peek(&flight.bytes).map(|(kind, ..)| kind);
        flight.link != 0 || kind == Ok(wire_edge::Kind::Handshake)
    });
    let handle = pair.connect();
    pair.run_until(1_000_000_000, "the requester is connected", |pair| {
        pair.hosts[0].established() == 1
    });
    pair.hosts[0].engine.remove_path(handle, 0).unwrap();
    pair.run_until(3_000_000_000, "the target is connected", |pair| {
        pair.hosts[1].established() == 1
    });
    pair.fill(0, 100_000);
    pair.write(0, 0, 100_000, 1);
    pair.run_for(1_000_000_000);
    assert!(pair.same(100_000));
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
}

//= protocol.md: packet.1, index.1
#[test]
fn a_reused_index_continues_its_packet_numbers() {
    let config = EngineConfig::default().links_max(2);
    let mut pair = Pair::connected_with(&[GIGABIT; 2], config);
    pair.fill(0, 4_000_000);
    let handle = pair.hosts[0].connection.unwrap();
    let mut largest = 0;
    for round in 0..5 {
        pair.write(0, 0, 4_000_000, round);
        pair.run_for(5_000_000);
        pair.hosts[0].engine.remove_path(handle, 1).unwrap();
        pair.turn(0);
        let peer = address(1, 1);
        let index = pair.hosts[0].engine.add_path(pair.now, handle, LinkId(1), peer).unwrap();
        assert_eq!(index, 1);
        pair.turn(0);
        let number = pair.wire.values().filter_map(|flight| {
            let prefix = decode(&flight.bytes).ok()?.prefix;
            (flight.to == 1 && prefix.link.0 == 1).then_some(prefix.packet)
        });
        let newest = number.max().unwrap();
        assert!(newest >= largest, "{newest} after {largest}");
        largest = newest;
        pair.run_until(5_000_000_000, "the link is back", |pair| {
            all_up(pair) && pair.hosts[1].info().paths.len() == 2
        });
        finish(&mut pair, 4_000_000, 1);
    }
    assert!(largest > 1000);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
}

//= protocol.md: join.8
#[test]
fn both_ends_may_add_a_link_at_the_same_time() {
    let mut pair = Pair::with(&[GIGABIT; 3], EngineConfig::default());
    // The first host knows no other address of the second.
    pair.hosts[1].engine.detach_link(LinkId(1));
    pair.hosts[1].engine.detach_link(LinkId(2));
    pair.hosts[1].engine.listen(0);
    pair.connect();
    pair.run_for(50_000_000);
    assert_eq!(pair.hosts[0].info().paths.len(), 1);
    for link in 1..3 {
        pair.hosts[1].engine.attach_link(LinkId(link), caps(1, link, &GIGABIT)).unwrap();
        let host = usize::from(link - 1);
        let handle = pair.hosts[host].connection.unwrap();
        let peer = address(1 - host, link);
        pair.hosts[host].engine.add_path(pair.now, handle, LinkId(link), peer).unwrap();
    }
    pair.run_until(1_000_000_000, "three links", |pair| {
        all_up(pair) && pair.hosts.iter().all(|host| host.info().paths.len() == 3)
    });
}

//= protocol.md: challenge.2, join.10
#[test]
fn a_link_that_a_peer_opens_towards_another_host_is_forgotten() {
    let mut pair = Pair::connected(1);
    let victim = address(0, 9);
    let handle = pair.hosts[0].connection.unwrap();
    pair.hosts[0].engine.attach_link(LinkId(1), caps(0, 1, &LinkPlan::default())).unwrap();
    pair.hosts[1].engine.attach_link(LinkId(1), caps(1, 1, &LinkPlan::default())).unwrap();
    let index = pair.hosts[0].engine.add_path(pair.now, handle, LinkId(1), address(1, 1)).unwrap();
    pair.channels.iter_mut().for_each(|links| links.push(links[0]));
    pair.turn(0);
    let mut challenge = pair.wire.pop_first().unwrap().1;
    pair.hosts[0].engine.remove_path(handle, index).unwrap();
    pair.wire.clear();
    challenge.from = victim;
    pair.deliver(&mut challenge);
    assert_eq!(pair.hosts[1].info().paths.len(), 2);
    let spied = std::rc::Rc::new(std::cell::Cell::new(0));
    pair.turn(1);
    let count = std::rc::Rc::clone(&spied);
    pair.take = Box::new(move |host, link, frames| {
        count.set(count.get() + u32::from(host == 1 && link == 1));
        engine::Emitted::Taken(frames)
    });
    pair.run_for(20_000_000_000);
    assert_eq!(pair.hosts[1].info().paths.len(), 1);
    assert!(spied.get() <= 6, "{} frames to a host that did not ask", spied.get());
}

//= protocol.md: size.2
#[test]
fn the_frame_size_is_discovered_and_reduced_when_large_frames_are_lost() {
    let plan =
        LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 1200, rate: None, offloads: false };
    let mut pair = Pair::connected_with(&[plan], EngineConfig::default());
    pair.fill(0, 4_000_000);
    pair.write(0, 0, 4_000_000, 1);
    finish(&mut pair, 4_000_000, 1);
    assert_eq!(pair.hosts[0].info().paths[0].frame_bytes, 9000);
    for truth in [1472, 4100, 9000, 1200] {
        for channel in pair.channels.iter_mut().flatten() {
            channel.frame_bytes_max = truth;
        }
        for context in 0..3 {
            pair.write(0, 0, 4_000_000, context);
            finish(&mut pair, 4_000_000, 1);
            pair.run_for(1_000_000_000);
        }
        let found = usize::from(pair.hosts[0].info().paths[0].frame_bytes);
        assert!(found <= truth, "{found} bytes where {truth} pass");
        println!("frames of {truth} bytes pass, {found} found");
    }
    // A report of the driver replaces the measured size.
    let larger =
        LinkPlan { frame_bytes_max: 1472, frame_bytes_safe: 1200, rate: None, offloads: false };
    let event = LinkEvent::Changed(caps(0, 0, &larger));
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), event);
    for channel in pair.channels.iter_mut().flatten() {
        channel.frame_bytes_max = 9000;
    }
    pair.write(0, 0, 4_000_000, 1);
    finish(&mut pair, 4_000_000, 1);
    let event = LinkEvent::Changed(caps(0, 0, &plan));
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), event);
    pair.write(0, 0, 4_000_000, 1);
    finish(&mut pair, 4_000_000, 1);
    assert_eq!(pair.hosts[0].info().paths[0].frame_bytes, 9000);
}

//= protocol.md: size.1
#[test]
fn links_with_different_frame_sizes_share_one_operation() {
    let small = LinkPlan { frame_bytes_max: 256, frame_bytes_safe: 256, ..GIGABIT };
    let large = LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 9000, ..GIGABIT };
    let mut pair = Pair::connected_with(&[small, large], EngineConfig::default());
    pair.fill(0, 4_000_000);
    for (context, host) in [(1, 0), (2, 1)] {
        pair.write(host, 0, if host == 0 { 4_000_000 } else { 0 }, context);
    }
    pair.filter = Box::new(|frame, _| frame % 29 != 7);
    finish(&mut pair, 4_000_000, 1);
    assert!(pair.channels[0].iter().all(|channel| channel.bytes > 500_000));
}

#[test]
fn many_small_links_acknowledge_each_other_within_their_frames() {
    let plan = LinkPlan { frame_bytes_max: 256, frame_bytes_safe: 256, ..GIGABIT };
    let mut pair = Pair::connected_with(&[plan; 7], EngineConfig::default());
    pair.fill(0, 1_000_000);
    pair.filter = Box::new(|frame, flight| {
        assert!(flight.bytes.len() <= 256, "a frame of {} bytes", flight.bytes.len());
        frame % 3 != 1
    });
    pair.write(0, 0, 500_000, 1);
    pair.write(1, 2_000_000, 500_000, 1);
    let mut done = [0; 2];
    pair.run_until(20_000_000_000, "both transfers", |pair| {
        (0..2).for_each(|host| done[host] += pair.done(host).len());
        done == [1, 1]
    });
    assert!(pair.same(500_000));
}

#[test]
fn a_link_between_validating_and_up_carries_no_data() {
    let mut pair = Pair::with(&[GIGABIT; 2], EngineConfig::default());
    pair.filter = Box::new(|_, flight| {
        if flight.link == 1 {
            let frame = decode(&flight.bytes).unwrap();
            assert!(matches!(frame.header, Header::Control), "{frame:?}");
        }
        flight.to == 1 || flight.link == 0
    });
    pair.hosts[1].engine.listen(0);
    pair.connect();
    pair.run_for(20_000_000);
    pair.fill(0, 1_000_000);
    pair.write(0, 0, 1_000_000, 1);
    finish(&mut pair, 1_000_000, 1);
    assert_eq!(states(&pair, 0)[1], LinkState::Validating);
    let up = |event: &Event| matches!(event, Event::Path { index: 1, state: LinkState::Up, .. });
    assert!(!pair.hosts[0].events.iter().any(up));
}

#[test]
fn oversized_probes_do_not_make_a_link_suspect() {
    let plan = LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 1472, ..GIGABIT };
    let mut pair = Pair::connected_with(&[plan; 2], EngineConfig::default());
    for channel in pair.channels.iter_mut().flatten() {
        channel.frame_bytes_max = 1500;
    }
    pair.fill(0, 4_000_000);
    for round in 0..60 {
        // Small operations use one link, large operations use both links.
        let length = if round % 4 == 0 { 100_000 } else { 100 };
        pair.write(0, 0, length, round);
        pair.run_for(30_000_000);
    }
    finish(&mut pair, 100_000, 60);
    let suspicions: u64 =
        pair.hosts[0].info().paths.iter().map(|path| path.counters.suspicions).sum();
    assert_eq!(suspicions, 0);
    assert!(pair.hosts[0].info().paths.iter().any(|path| path.frame_bytes == 1500));
}

//= protocol.md: remove.4
#[test]
fn both_ends_may_remove_different_links_at_the_same_time() {
    for removed in [[0, 1], [1, 0]] {
        for links in 2..5_u8 {
            let plans = vec![GIGABIT; usize::from(links)];
            let mut pair = Pair::connected_with(&plans, EngineConfig::default());
            let handles = pair.hosts.each_ref().map(|host| host.connection.unwrap());
            // Each host removes some of the links, and the two hosts together remove all of them.
            for link in 0..links {
                let host = removed[usize::from(link % 2)];
                pair.hosts[host].engine.remove_path(handles[host], link).unwrap();
            }
            pair.fill(0, 100_000);
            pair.write(0, 0, 100_000, 1);
            finish(&mut pair, 100_000, 1);
            pair.run_for(10_000_000_000);
            // The links that the initiator has removed do not come back.
            for host in &pair.hosts {
                let left: Vec<u8> = host.info().paths.iter().map(|path| path.link.0).collect();
                let wanted = |link: &u8| removed[usize::from(link % 2)] == 1;
                assert!(left.iter().all(wanted) && !left.is_empty(), "{left:?} {removed:?}");
                assert!(host.closed().is_empty());
            }
            assert!(all_up(&pair));
        }
    }
}

//= protocol.md: remove.3
#[test]
fn the_last_remaining_link_is_not_one_that_an_end_removed() {
    for first in 0..2 {
        let mut pair = Pair::connected_with(&[GIGABIT; 2], EngineConfig::default());
        let handle = pair.hosts[first].connection.unwrap();
        pair.hosts[first].engine.remove_path(handle, 0).unwrap();
        pair.hosts[1 - first].engine.detach_link(LinkId(1));
        pair.fill(0, 100_000);
        pair.write(0, 0, 100_000, 1);
        finish(&mut pair, 100_000, 1);
        pair.run_for(10_000_000_000);
        for host in &pair.hosts {
            let left: Vec<u8> = host.info().paths.iter().map(|path| path.link.0).collect();
            assert_eq!(left, [0]);
            assert!(host.closed().is_empty());
        }
    }
}

//= protocol.md: join.9, compare.6
#[test]
fn both_ends_may_add_the_same_link_at_the_same_time() {
    for lead_ns in [0, 5_000, 30_000, 100_000] {
        for first in 0..2 {
            let mut pair = Pair::connected_with(&[GIGABIT; 2], EngineConfig::default());
            let handles = pair.hosts.each_ref().map(|host| host.connection.unwrap());
            pair.hosts[first].engine.remove_path(handles[first], 1).unwrap();
            pair.run_for(2_000_000_000);
            for host in [first, 1 - first] {
                let peer = address(1 - host, 1);
                let now = pair.now;
                let _full = pair.hosts[host].engine.add_path(now, handles[host], LinkId(1), peer);
                pair.run_for(lead_ns);
            }
            pair.run_for(1_000_000_000);
            assert!(all_up(&pair), "{:?} {:?}", states(&pair, 0), states(&pair, 1));
            let found = pair.hosts.each_ref().map(|host| host.info().paths.len());
            assert_eq!(found, [2, 2], "{lead_ns} ns after the first, which is {first}");
        }
    }
}

//= protocol.md: reset.2
#[test]
fn a_peer_that_restarts_while_its_only_link_is_down_resets_over_a_restored_link() {
    let mut pair = Pair::with(&[GIGABIT; 3], EngineConfig::default());
    // No answer arrives on the third pair of links, so this end keeps sending challenges on it.
    pair.set_up(1, 2, false);
    pair.establish();
    let handle = pair.hosts[0].connection.unwrap();
    let paths = pair.hosts[0].info().paths;
    let before = paths.iter().find(|path| path.link == LinkId(1)).unwrap().index;
    pair.fill(0, 100_000);
    pair.write(0, 0, 100_000, 1);
    pair.turn(0);
    pair.hosts[0].engine.remove_path(handle, before).unwrap();
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), LinkEvent::Down);
    pair.run_for(1_000_000);
    pair.restart(1, 9);
    // A Reset from an address that has not answered is no proof that the peer has restarted.
    pair.set_up(1, 2, true);
    pair.run_for(1_000_000_000);
    assert!(pair.hosts[0].closed().is_empty());
    assert!(pair.hosts[0].engine.counters().resets_ignored > 0);
    let index = pair.hosts[0].engine.add_path(pair.now, handle, LinkId(1), address(1, 1)).unwrap();
    assert_ne!(index, before);
    pair.run_until(1_000_000_000, "the peer reports that it has restarted", |pair| {
        pair.hosts[0].closed() == [Closed::PeerRestarted]
    });
}

/// Acknowledgements of small frames restart every timeout. So no timeout shows that large frames
/// are lost, and only the content of the acknowledgements can show it.
#[test]
fn losing_only_large_frames_reduces_the_frame_size_within_some_round_trips() {
    for truth in [1472, 4100] {
        let plan =
            LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 1200, rate: None, offloads: false };
        let mut pair = Pair::connected_with(&[plan], EngineConfig::default());
        pair.fill(0, 4_000_000);
        pair.write(0, 0, 4_000_000, 1);
        finish(&mut pair, 4_000_000, 1);
        assert_eq!(pair.hosts[0].info().paths[0].frame_bytes, 9000);
        pair.write(0, 0, 4_000_000, 1);
        pair.run_for(100_000);
        pair.channels[0][0].frame_bytes_max = truth;
        let begun = pair.now;
        let mut asked = 0;
        let mut done = Vec::new();
        // The second host keeps posting reads of 8 and of 1250 bytes. So answers of small and of
        // medium size arrive and are acknowledged all the time.
        while done.is_empty() {
            let (key, address) = pair.remote(0, 0);
            let sink = pair.hosts[1].region.id;
            let read = Request::Read { sink, sink_offset: 4_100_000, key, address };
            let length = if asked % 3 == 0 { 1250 } else { 8 };
            if pair.hosts[1].info().outstanding < 32 {
                pair.post(1, read, length, asked);
                asked += 1;
            }
            pair.run_for(10_000);
            done.extend(pair.done(0));
            pair.done(1);
            let round_trips = pair.now.since_ns(begun) / (2 * DELAY_NS);
            assert!(round_trips < 30, "{:?}", pair.hosts[0].info());
        }
        assert!(pair.same(4_000_000));
        let path = pair.hosts[0].info().paths[0];
        assert!(usize::from(path.frame_bytes) <= truth);
    }
}

#[test]
fn random_losses_do_not_change_the_frame_size() {
    let plan =
        LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 1200, rate: None, offloads: false };
    let mut pair = Pair::connected_with(&[plan], EngineConfig::default());
    pair.fill(0, 4_000_000);
    pair.write(0, 0, 4_000_000, 1);
    finish(&mut pair, 4_000_000, 1);
    let probes = pair.hosts[0].info().paths[0].counters.mtu_probes_sent;
    // The network loses large frames in bursts, but no small frames.
    pair.filter = Box::new(|frame, flight| flight.bytes.len() < 1200 || frame % 16 > 1);
    for context in 0..20 {
        pair.write(0, 0, 4_000_000, context);
        for small in 0..50 {
            pair.write(0, 4_000_000, 8, 1_000 + small);
        }
        finish(&mut pair, 4_000_000, 51);
        let path = pair.hosts[0].info().paths[0];
        assert_eq!((path.frame_bytes, path.counters.mtu_probes_sent), (9000, probes));
    }
}
