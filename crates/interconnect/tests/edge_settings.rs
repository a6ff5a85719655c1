//! Hosts with the real engine reject impossible settings, and the error names the setting.

use std::panic;

use interconnect::edge::{EdgeConfiguration, EdgeFabric};
use interconnect::ethernet::EthernetConfiguration;
use interconnect::routing::Routing;
use interconnect::topology::Topology;

fn fabric(change: impl FnOnce(&mut EdgeConfiguration)) -> Result<(), String> {
    let mut configuration = EdgeConfiguration::default();
    change(&mut configuration);
    let topology = Topology::star(2).expect("a star");
    let ethernet = EthernetConfiguration::with_rate(10_000_000_000);
    let made = panic::catch_unwind(|| {
        EdgeFabric::new(&topology, Routing::Shortest, ethernet, configuration, 1)
            .map(|_| ())
            .map_err(|error| error.to_string())
    });
    made.unwrap_or_else(|_| Err("it panics".into()))
}

#[test]
fn impossible_hosts_are_refused_by_the_name_of_the_setting() {
    let refused = |change: fn(&mut EdgeConfiguration)| fabric(change).expect_err("it is refused");
    for (message, setting, wanted) in [
        (refused(|host| host.rails = 0), "`rails` is 0", "1 to 8"),
        (refused(|host| host.rails = 17), "`rails` is 17", "1 to 8"),
        (refused(|host| host.operation_bytes = 0), "`operation_bytes` is 0", "1 to 134217728"),
        (refused(|host| host.window = 4097), "`window` is 4097", "1 to 4096"),
        (refused(|host| host.operations = 0), "`operations` is 0", "1 to "),
        (refused(|host| host.segments = 65), "`segments` is 65", "1 to 64"),
        (refused(|host| host.transmit_queue_frames = 0), "`transmit_queue_frames` is 0", "1 to "),
        (refused(|host| host.loss_ppm = 2_000_000), "`loss_ppm` is 2000000", "0 to 1000000"),
    ] {
        assert!(message.contains(setting) && message.contains(wanted), "{setting}: {message}");
    }
}

#[test]
fn the_smallest_and_largest_valid_settings_are_accepted() {
    fabric(|host| (host.rails, host.window, host.loss_ppm) = (8, 4096, 1_000_000))
        .expect("it works");
}
