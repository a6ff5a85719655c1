//! Tests of queue pairs on two hosts with an Ethernet between them.

mod ends;
use ends::{Program, with_links};
use testbed::host::Host;
use verbs::{AsyncEventKind, PortState, SendOpcode};
use verbs_edge::Settings;

#[test]
fn queue_pairs_of_two_hosts_connect_and_survive_an_interface_going_down() {
    let Some(hosts) = Host::pair() else { return };
    for (host, last) in hosts.iter().zip(1..) {
        host.ip(&format!("address add 10.11.0.{last}/24 dev edge0"));
        host.ip(&format!("-6 address add fd11::{last}/64 dev edge0 nodad"));
    }
    let programs = [0, 1].map(|at: usize| hosts[at].run(|| Program::new(&Settings::default())));
    let gids = programs.each_ref().map(|program| program.context.gids().expect("not forked"));
    assert_eq!(gids.each_ref().map(Vec::len), [2, 2]);
    for index in 0..2 {
        let mut ends = programs.each_ref().map(|program| program.end(1));
        for (end, gids) in ends.iter_mut().zip(&gids) {
            (end.gid, end.index) = (gids[index].gid, index as u8);
        }
        let [one, other] = &ends;
        one.connect(other.name());
        other.connect(one.name());
        let [here, there] = &programs;
        let work = |id| {
            let (address, key) = (there.address(0), there.region.key());
            one.post(
                id,
                SendOpcode::Write { address, key, immediate: None },
                &[here.piece(0, 5000)],
            );
        };
        work(1);
        one.succeed(1);
        for (change, state, kind) in [
            ("down", PortState::Down, AsyncEventKind::PortError),
            ("up", PortState::Active, AsyncEventKind::PortActive),
        ] {
            hosts[0].ip(&format!("link set edge0 {change}"));
            let event = here.context.get_event().expect("there is one");
            assert_eq!(event.kind, kind);
            here.context.acknowledge_event(&event);
            let port = hosts[0].run({
                let context = here.context.clone();
                move || context.query_port(1).expect("it is there")
            });
            assert_eq!(port.state, state);
            if change == "down" {
                work(2);
            } else {
                hosts[0].ip("-6 address replace fd11::1/64 dev edge0 nodad");
            }
        }
        one.succeed(2);
        work(3);
        one.succeed(3);
        // Drop the objects although there are unread events about the port of the other host.
        drop(ends);
    }
}

#[test]
fn raw_ethernet_beside_udp_carries_queue_pairs() {
    let Some(hosts) = Host::pair() else { return };
    for (host, last) in hosts.iter().zip(1..) {
        host.ip(&format!("address add 10.12.0.{last}/24 dev edge0"));
    }
    let links = "edge0,packet:edge0";
    let programs = [0, 1].map(|at: usize| hosts[at].run(move || Program::new(&with_links(links))));
    let [one, other] = programs.each_ref().map(|program| program.end(1));
    one.connect(other.name());
    other.connect(one.name());
    let [here, there] = &programs;
    for id in 0..50 {
        let (address, key) = (there.address(0), there.region.key());
        one.post(id, SendOpcode::Write { address, key, immediate: None }, &[here.piece(0, 50_000)]);
        one.succeed(id);
    }
}
