//! Tests of the regions that pending work uses.

use std::collections::HashSet;

use mem::{Buffer, RegionId, Rights};

use super::pair::{Config, Pair, Side, flags, operation, remote};
use work::{Order, Piece, PieceList, Receive, Request, Sink, Source};

fn visited(side: &Side) -> HashSet<RegionId> {
    let mut found = HashSet::new();
    let mut visit = |region| {
        found.insert(region);
    };
    side.pools.visit_regions(&mut visit);
    side.inbound.visit_regions(&mut visit);
    found
}

fn region(side: &Side) -> RegionId {
    let (table, domain) = (&side.table, side.table.allocate_domain());
    table.register(domain, Buffer::new(64), Rights::LOCAL_WRITE).unwrap().id
}

#[test]
fn every_kind_of_operation_holds_its_region_until_it_ends() {
    let config = Config { lose: 0, repeat: 0, ..Config::default() };
    let mut pair = Pair::new(config, 1);
    let (key, address) = remote(&pair, 0);
    let [written, sent, read, sink, idle] = [(); 5].map(|()| region(&pair.sides[0]));
    let source = |region| Source::Region { region, offset: 0 };
    let sink_of = Some(Sink { region: sink, offset: 0 });
    let requests = [
        Request::Write { source: source(written), key, address },
        Request::Send { source: source(sent) },
        Request::Read { sink: read, sink_offset: 0, key, address },
        Request::FetchAdd { key, address, operand: 1, sink: sink_of },
    ];
    for request in requests {
        pair.sides[0].post(&operation(request, 0, 8, flags(Order::Relaxed))).unwrap();
    }
    assert_eq!(visited(&pair.sides[0]), HashSet::from([written, sent, read, sink]));
    assert!(!visited(&pair.sides[0]).contains(&idle));
    pair.sides[1].post_receive(64, 8, 1).unwrap();
    pair.run(&[], &mut |_| ());
    assert_eq!(visited(&pair.sides[0]), HashSet::new());
    assert_eq!(pair.sides[0].pools.visited_count(), 0);
}

#[test]
fn receives_and_lists_hold_their_regions_until_they_are_consumed() {
    let mut pair = Pair::new(Config::default(), 2);
    let side = &mut pair.sides[1];
    let [plain, followed, first, second] = [(); 4].map(|()| region(side));
    let at = |region| Receive { region, offset: 0, length: 8, context: 0 };
    {
        let memory = side.table.access();
        side.inbound.post_receive(&memory, at(plain)).unwrap();
        let slot = side.status.acquire().unwrap();
        side.inbound.post_followed_receive(&memory, at(followed), slot).unwrap();
        let pieces = [first, second].map(|region| Piece { region, offset: 0, length: 8 });
        let list = PieceList::new(&pieces).unwrap();
        side.inbound.post_receive_list(&memory, &mut side.pools, list, 0).unwrap();
    }
    assert_eq!(visited(side), HashSet::from([plain, followed, first, second]));
}
